import * as React from 'react';
import { renderToStaticMarkup } from 'react-dom/server';

import { Painter } from '../charts';
import { SharePanel, StatusLine } from '../components';
import { History } from '../history';
import { optionAt, parts } from '../resize';
import { INITIAL, State } from '../state';
import { GIB, holder, run, session, telemetry } from './samples';

const nothing = (): void => undefined;

function state(changes: Partial<State> = {}): State {
  return { ...INITIAL, presence: 'session', session: session(), telemetry: telemetry(), ...changes };
}

function item(changes?: Partial<State>): string {
  return renderToStaticMarkup(<StatusLine state={state(changes)} onOpen={nothing} />);
}

function panel(changes?: Partial<State>, wanted?: string): string {
  return renderToStaticMarkup(
    <SharePanel
      state={state(changes)}
      now={Date.parse('2026-01-01T12:05:00Z')}
      history={new History()}
      painter={new Painter()}
      wanted={wanted}
      onChoose={nothing}
      onResize={nothing}
      onBurst={nothing}
      onCheckpoint={nothing}
      holders={{ onOpen: nothing, onRestart: nothing, onShutdown: nothing }}
    />
  );
}

describe('the status-bar item', () => {
  it('shows share, memory and that the card is simulated', () => {
    const html = item();
    expect(html).toContain('GPU 1/4');
    expect(html).toContain('12.3 / 20.0 GiB');
    expect(html).toContain('>simulated<');
    expect(html).toContain('data-tone="calm"');
    expect(html).toContain('width:61.5');
  });
  it('is not there without a share', () => {
    expect(item({ presence: 'none' })).toBe('');
    expect(item({ presence: 'unknown' })).toBe('');
  });
  it('changes its tone near the end and marks what is not known', () => {
    expect(item({ telemetry: telemetry({ memory_used_bytes: 18 * GIB }) })).toContain('"warn"');
    expect(item({ telemetry: telemetry({ memory_used_bytes: 20 * GIB }) })).toContain('"full"');
    expect(item({ fault: 'down' })).toContain('data-fault="true"');
  });
  it('does not call a real card simulated', () => {
    const real = { session: session({ simulated: false }), telemetry: telemetry({ simulated: false }) };
    expect(item(real)).not.toContain('>simulated<');
  });
});

describe('the panel', () => {
  it('offers the shares with memory, price and the reason of what is not free', () => {
    const html = panel();
    for (const text of ['10.0 GiB', '0.63 EUR/h', 'your share now', 'Others hold 2/8 of this card.']) {
      expect(html).toContain(text);
    }
    expect(html.match(/ disabled=""/g)).toHaveLength(1); // the taken share
    expect(html).toMatch(/<button type="submit"[^>]*aria-disabled="true"/); // nothing to do yet
  });
  it('lets a free share be taken', () => {
    expect(panel({}, '1/2')).toMatch(/<button type="submit"[^>]*>Resize to 1\/2</);
    expect(panel({}, '1/2')).toMatch(/<button type="submit"[^>]*aria-disabled="false"/);
  });
  it('says how the size of a slice changes', () => {
    const slice = session({ resizable: false, resize: 'restart' });
    expect(panel({ session: slice })).toContain('start it with another share');
  });
  it('is busy during a resize', () => {
    const html = panel({ resize: { phase: 'running', share: '1/2' } }, '1/2');
    expect(html).toContain('Resizing to 1/2…');
    expect(html).toContain('aria-busy="true"');
    expect(html).toMatch(/<button type="submit"[^>]*aria-disabled="true"/);
  });
  it('says a refusal where it is read aloud', () => {
    const message = 'Free 2.3 GiB first. Nothing was changed.';
    expect(panel({ resize: { phase: 'refused', message } })).toMatch(
      new RegExp(`role="status"[^>]*>${message}`)
    );
  });
  it('shows before a shrink what has to be freed, and who holds it', () => {
    const detail = { holders: [holder()], runs: [] };
    const processes = [{ pid: 11, memory_bytes: 12 * GIB }];
    const html = panel({ detail, telemetry: telemetry({ processes }) }, '1/8');
    expect(html).toContain('2.3 GiB must be freed first.');
    expect(html).toContain('train.ipynb holds 12.0 GiB.');
    expect(panel({ telemetry: telemetry({ memory_used_bytes: null }) }, '1/8')).toContain('is not known now');
    expect(panel({}, '1/2')).not.toContain('freed first');
  });
  it('shows unknown readings as unknown and never as 0', () => {
    const unknown = { utilization_percent: null, power_watts: null, temperature_celsius: null, energy_joules: null };
    const html = panel({ telemetry: telemetry({ ...unknown, memory_used_bytes: null }) });
    expect(html.match(/jp-gpu-value">unknown/g)).toHaveLength(5);
    expect(html).not.toMatch(/jp-gpu-value">0/);
    expect(html).toContain('data-unknown="true"');
  });
  it('names health and its reason, and unknown health as unknown', () => {
    expect(panel()).toContain('data-state="unknown">unknown');
    const card = { ...session().cards[0]!, health: { state: 'warning' as const, reason: '91 °C' } };
    const html = panel({ session: session({ cards: [card] }) });
    expect(html).toContain('data-state="warning">warning');
    expect(html).toContain('91 °C');
  });
  it('shows notices of the hub and offers burst only where the hub knows it', () => {
    const notices = [{ code: 'frozen', message: 'New memory is refused.', deadline: null }];
    expect(panel({ session: session({ notices }) })).toContain('New memory is refused.');
    expect(panel()).not.toContain('Burst');
    expect(panel({ session: session({ burst: true }) })).toMatch(/type="checkbox"[^>]*checked=""/);
  });
  it('lists kernels with what can be done, and other processes without', () => {
    const holders = [holder(), holder({ kind: 'process', title: 'train.py', kernel_id: null, pids: [12], path: null })];
    const processes = [
      { pid: 11, memory_bytes: 3 * GIB },
      { pid: 12, memory_bytes: null }
    ];
    const html = panel({ detail: { holders, runs: [] }, telemetry: telemetry({ processes }) });
    expect(html.match(/Restart the kernel of/g)).toHaveLength(1);
    expect(html).toContain('Shut down the kernel of train.ipynb');
    expect(html).toMatch(/train.py<\/span><span class="jp-gpu-holder-memory">unknown/);
  });
  it('explains an empty list of checkpoints', () => {
    expect(panel({ detail: { holders: [], runs: [] } })).toContain('No run has saved a checkpoint here yet.');
  });
  it('lists checkpoints with what is known of them', () => {
    const detail = { holders: [], runs: [run()] };
    const html = panel({ detail });
    for (const text of ['step 1,200 · 400 MiB · 5 min ago', '✓ verified', 'Next checkpoint in 5 min']) {
      expect(html).toContain(text);
    }
    expect(html).toMatch(/aria-pressed="false"[^>]*aria-label="Pin step-1200"/);
    const nothingKnown = { name: 'x', step: null, bytes: null, saved: null, verified: null, pinned: null };
    const bare = panel({ detail: { holders: [], runs: [run({ checkpoints: [nothingKnown], next_due: null })] } });
    expect(bare).toContain('step unknown · size unknown · age unknown');
    expect(bare).toContain('not verified yet');
  });
  it('says what waits for the run, what it refused, and why a file is not read', () => {
    const requests = [{ id: 'a', action: 'pin' as const, checkpoint: 'step-1200', asked: null }];
    const answers = [{ id: 'b', outcome: 'refused' as const, message: 'It is gone.' }];
    const html = panel({ detail: { holders: [], runs: [run({ requests, answers })] } });
    expect(html).toContain('Asked to pin; waiting for the run.');
    expect(html).toContain('It is gone.');
    const problem = 'Its state file is not valid JSON.';
    expect(panel({ detail: { holders: [], runs: [run({ problem, checkpoints: [] })] } })).toContain(problem);
  });
  it('says that it reconnects', () => {
    expect(panel({ stale: true })).toMatch(/No readings have arrived for some seconds\. Trying again…/);
  });
  it('has a word for a server without a share', () => {
    expect(panel({ presence: 'none' })).toContain('without a GPU share');
  });
  it('says in words that a session has no card, and offers no resize', () => {
    const none = { share: 'none', eighths: 0, model: null, cards: [], memory_bytes: 0, resizable: false, options: [] };
    const unread = { share: 'none', available: false, reason: 'No driver.', memory_used_bytes: null };
    const changes = { session: session({ ...none, simulated: false }), telemetry: telemetry(unread) };
    const html = panel(changes);
    expect(html).toContain('runs without a card');
    expect(html).not.toMatch(/<form|No driver|GPU none|jp-gpu-value/);
    expect(item(changes)).toContain('>No card<');
    expect(item(changes)).toMatch(/aria-label="No card: [^"]*CPU/);
    expect(item(changes)).not.toMatch(/GiB|resize|GPU none|data-fault="true"/);
  });
  it('does not offer to resize several cards', () => {
    expect(panel({ session: session({ share: '2', resizable: false }) })).not.toContain('<form');
  });
});

describe('the bar of eighths', () => {
  const known = { own: 2, others: 3, free: 3 };
  it('shows own, others and free', () => {
    expect(parts(known, 2, 2).join()).toBe('own,own,free,free,free,others,others,others');
    expect(parts(null, 2, 2).join()).toBe('own,own' + ',unknown'.repeat(6));
  });
  it('shows what a choice would add or give back', () => {
    expect(parts(known, 2, 4).slice(0, 5).join()).toBe('own,own,gain,gain,free');
    expect(parts(known, 2, 1).slice(0, 3).join()).toBe('own,loss,free');
  });
  it('leads a click to the smallest size that reaches so far', () => {
    const { options } = session();
    expect([1, 2, 3, 4, 5, 8].map(place => optionAt(options, place)?.share)).toEqual([
      '1/8',
      '1/4',
      '1/2',
      '1/2',
      '1',
      '1'
    ]);
  });
});
