import {
  chosen,
  consequence,
  eighthsOf,
  held,
  INITIAL,
  noticeText,
  reduce,
  spoken,
  State,
  tooltip,
  view
} from '../state';
import type { Telemetry } from '../types';
import { GIB, holder, session, telemetry } from './samples';

function ready(changes: Partial<State> = {}): State {
  const state = reduce(INITIAL, {
    type: 'status',
    status: { configured: true, session: session(), telemetry: telemetry() }
  });
  return { ...state, ...changes };
}

it('stays out of sight in a server without a share', () => {
  const status = { configured: false, session: null, telemetry: null };
  expect(reduce(ready(), { type: 'status', status }).presence).toBe('none');
});

it('keeps the last known share when the service is down, and says so', () => {
  const state = reduce(ready(), {
    type: 'status-failed',
    message: 'The GPU service of this hub cannot be reached.',
    status: { configured: true, session: null, telemetry: null }
  });
  expect(view(state).share).toBe('1/4');
  expect(view(state).notes).toEqual(['The GPU service of this hub cannot be reached.']);
});

it('shows itself when the service was down from the start', () => {
  const state = reduce(INITIAL, {
    type: 'status-failed',
    message: 'down',
    status: { configured: true, session: null, telemetry: telemetry({ share: null }) }
  });
  expect(state.presence).toBe('session');
  expect(view(state)).toMatchObject({ share: null, used: 12.3 * GIB, price: null });
});

it('does not show old readings as now', () => {
  const state = reduce(ready(), { type: 'silence' });
  expect(view(state)).toMatchObject({ used: null, part: null, utilization: null, share: '1/4' });
  expect(view(state).allowed).toBe(20 * GIB);
  expect(view(reduce(state, { type: 'telemetry', telemetry: telemetry() })).used).toBe(12.3 * GIB);
});

it('follows a share that was changed elsewhere, without the old price', () => {
  const state = reduce(ready(), {
    type: 'telemetry',
    telemetry: telemetry({ share: '1/2', memory_allowed_bytes: 40 * GIB })
  });
  expect(view(state)).toMatchObject({ share: '1/2', allowed: 40 * GIB, price: null });
});

it('does not invent figures that the driver does not know', () => {
  const unknown = telemetry({
    memory_used_bytes: null,
    utilization_percent: null,
    power_watts: null,
    temperature_celsius: null
  });
  const state = reduce(ready(), { type: 'telemetry', telemetry: unknown });
  expect(tooltip(state)).toContain('– / 20.0 GiB');
  expect(tooltip(state)).toContain('Utilisation – · power – · –');
  expect(spoken(state)).toContain('memory in use unknown');
});

it('goes through a resize', () => {
  const started = reduce(ready(), { type: 'resize-started', share: '1/2' });
  expect(started.resize).toEqual({ phase: 'running', share: '1/2' });
  expect(reduce(started, { type: 'resize-forgotten' })).toBe(started);
  const after = session({ share: '1/2', eighths: 4, memory_bytes: 40 * GIB });
  const done = reduce(started, {
    type: 'resize-done',
    from: '1/4',
    answer: { session: after, applied_ms: 3.21 }
  });
  expect(done.resize).toEqual({
    phase: 'done',
    message: 'Resized from 1/4 to 1/2 in 3.2 ms: 40.0 GiB allowed. Kernels kept running.'
  });
  // It is kept until the share is changed elsewhere.
  const status = { configured: true, session: after, telemetry: null };
  expect(reduce(done, { type: 'status', status }).resize).toBe(done.resize);
  const elsewhere = { ...status, session: session({ share: '1/8' }) };
  expect(reduce(done, { type: 'status', status: elsewhere }).resize).toEqual({ phase: 'idle' });
  // At once, not only with the next reading.
  expect(view(done)).toMatchObject({ share: '1/2', allowed: 40 * GIB, used: 12.3 * GIB });
});

it('keeps everything when a resize is refused', () => {
  const before = ready();
  const fault = { code: 'in_use', field: null, message: 'Free 2.3 GiB first.' };
  const state = reduce(before, { type: 'resize-refused', fault });
  expect(state.resize).toEqual({ phase: 'refused', message: 'Free 2.3 GiB first.' });
  expect(view(state)).toEqual(view(before));
});

it('says the share in words and warns before the memory is full', () => {
  expect(spoken(ready())).toBe(
    'GPU share: one quarter, simulated card. 12.3 of 20.0 gibibytes in use. open to resize'
  );
  const full = telemetry({ memory_used_bytes: 20 * GIB });
  expect(spoken(reduce(ready(), { type: 'telemetry', telemetry: full }))).toContain('memory is full');
});

it('chooses what was wanted, else the current share', () => {
  const { options } = session();
  expect(chosen(options, '1/2')?.share).toBe('1/2');
  expect(chosen(options, null)?.share).toBe('1/4');
  expect(chosen(options, 'gone')?.share).toBe('1/4');
  expect(chosen([], null)).toBeNull();
});

describe('what a choice would change', () => {
  const now = session();
  it('is memory, price and what becomes of the kernels', () => {
    expect(consequence(now, now.options[2]!, 12 * GIB)).toEqual({
      memory: '20.0 → 40.0 GiB',
      price: '1.00 → 1.60 EUR/h',
      kernels: 'Kernels keep running.',
      free: 0
    });
    expect(consequence(now, { ...now.options[2]!, live: false }, 0).kernels).toContain('start anew');
  });
  it('is what a shrink needs freed, and unknown stays unknown', () => {
    expect(consequence(now, now.options[0]!, 12.5 * GIB).free).toBe(2.5 * GIB);
    expect(consequence(now, now.options[0]!, null).free).toBeNull();
  });
});

describe('the eighths of the card', () => {
  it('are own, of others and free', () => {
    expect(eighthsOf(session({ free_eighths: 4 }))).toEqual({ own: 2, others: 2, free: 4 });
  });
  it('are unknown without the hub’s word, and not asked of several cards', () => {
    expect(eighthsOf(session({ free_eighths: null }))).toBeNull();
    expect(eighthsOf(session())).toBeNull();
    expect(eighthsOf(session({ share: '2', eighths: 16, free_eighths: 0 }))).toBeNull();
  });
});

describe('who holds the memory', () => {
  const holders = [
    holder({ title: 'idle.ipynb', kernel_id: 'k0', pids: [] }),
    holder({ title: 'small.ipynb', kernel_id: 'k1', pids: [1, 2] }),
    holder({ kind: 'process', title: 'train.py', kernel_id: null, pids: [3] })
  ];
  const detail = { holders, runs: [] };
  const at = (processes: Telemetry['processes']): State =>
    ready({ detail, telemetry: telemetry({ processes }) });

  it('is summed over the processes of a kernel, the largest first', () => {
    const rows = held(
      at([
        { pid: 3, memory_bytes: 4 * GIB },
        { pid: 1, memory_bytes: GIB },
        { pid: 2, memory_bytes: GIB }
      ])
    );
    expect(rows!.map(row => [row.title, row.memory])).toEqual([
      ['train.py', 4 * GIB],
      ['small.ipynb', 2 * GIB],
      ['idle.ipynb', 0]
    ]);
  });
  it('is unknown where the driver does not say, for one or for all', () => {
    const rows = held(at([{ pid: 1, memory_bytes: null }]));
    expect(rows!.find(row => row.kernel_id === 'k1')!.memory).toBeNull();
    expect(held(at(null))).toBeNull();
    expect(held(at(undefined))).toBeNull();
    expect(held({ ...at([]), stale: true })).toBeNull();
    expect(held(ready())).toBeNull();
  });
  it('forgets a process that has ended', () => {
    expect(held(at([]))!.map(row => row.title)).toEqual(['idle.ipynb', 'small.ipynb']);
  });
});

it('says until when something about the share must be done', () => {
  const now = Date.parse('2026-01-01T12:00:00Z');
  const notice = { code: 'over_limit', message: 'Free 1 GiB', deadline: '2026-01-01T12:02:00Z' };
  expect(noticeText(notice, now)).toBe('Free 1 GiB (in 2 min)');
  expect(noticeText({ ...notice, deadline: null }, now)).toBe('Free 1 GiB');
});

it('keeps what is under way apart, and its outcome', () => {
  const started = reduce(ready(), { type: 'act-started', what: 'k1' });
  expect(started.acting).toEqual(['k1']);
  const ended = reduce(started, { type: 'act-ended', what: 'k1', ok: false, message: 'no' });
  expect(ended).toMatchObject({ acting: [], outcome: { ok: false, message: 'no' } });
});
