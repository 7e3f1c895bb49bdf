import * as React from 'react';
import { renderToStaticMarkup } from 'react-dom/server';

import { ActForm } from '../act';
import * as acts from '../acts';
import { Api } from '../api';
import { Detail } from '../detail';
import { Store } from '../store';
import { card, session, waiting } from './samples';

const api = new Api('/services/gpuspawner/', 'x');
const nothing = (): void => undefined;

function detail(store: Store, open: { kind: 'card' | 'session' | 'node'; name: string }): string {
  return renderToStaticMarkup(<Detail store={store} api={api} hub="/hub/" acts={0} open={open} onOpen={nothing} onDone={nothing} />);
}

function store(admin: boolean, cards = [card({ held: 2 })], sessions = [session()]): Store {
  const made = new Store();
  made.take('hello', { user: 'admin', admin, all: admin });
  made.take('begin', {});
  made.take('part', { cards, sessions });
  made.take('ready', { at: 'x' });
  return made;
}

describe('a card beside the list', () => {
  it('names its holders in a table, and what is unknown is no 0', () => {
    const html = detail(store(true, [card({ held: 2, utilization: null, power: null })]), { kind: 'card', name: 'GPU-1' });
    expect(html).toContain('>ann</button>');
    expect(html).toContain('– / 20.0 GiB');
    expect(html).toMatch(/Busy<\/dt><dd>–/);
    expect(html).not.toContain('simulated');
    expect(detail(store(true, [card({ simulated: true })]), { kind: 'card', name: 'GPU-1' })).toContain('>simulated<');
  });
  it('lets administrators act and nobody else', () => {
    expect(detail(store(true), { kind: 'card', name: 'GPU-1' })).toContain('Out of use…');
    expect(detail(store(false), { kind: 'card', name: 'GPU-1' })).not.toContain('Out of use…');
  });
  it('says why something cannot be done', () => {
    const html = detail(store(true, [card()], []), { kind: 'card', name: 'GPU-1' });
    expect(html).toMatch(/aria-disabled="true"[^>]*>Drain…<\/button><span[^>]*>Nobody holds anything here/);
  });
  it('writes hostile names as text', () => {
    const name = '<img src=x onerror=alert(1)>';
    const html = detail(store(true, [card({ held: 2 })], [session({ user: name })]), { kind: 'card', name: 'GPU-1' });
    expect(html).not.toContain('<img');
    expect(html).toContain('&lt;img');
  });
  it('that has gone is said', () => {
    expect(detail(store(true), { kind: 'card', name: 'GPU-9' })).toContain('There is no such card now');
    expect(detail(store(true), { kind: 'session', name: 's-9' })).toContain('has ended, or you may not see it');
  });
});

describe('acts', () => {
  const asked: unknown[][] = [];
  const recorder = {
    change: (...given: unknown[]) => {
      asked.push(given);
      return Promise.resolve({});
    }
  } as unknown as Api;
  beforeEach(() => asked.splice(0));

  it('undo a cordon by lifting it, and a lift by the old reason', async () => {
    const done = await acts.cordon(recorder, { kind: 'card', name: 'GPU-1' }, 'Card 0').run('fan', '');
    await done.undo?.();
    const cordon = { kind: 'card' as const, name: 'GPU-1', by: 'a', reason: 'fan', since: 'x', ends: null };
    await (await acts.lift(recorder, { kind: 'card', name: 'GPU-1' }, 'Card 0', cordon).run('done', '')).undo?.();
    expect(asked.map(each => each.slice(1, 3))).toEqual([
      ['/cordons', { kind: 'card', name: 'GPU-1', reason: 'fan', drain_seconds: null }],
      ['/cordons/lift', { kind: 'card', name: 'GPU-1' }],
      ['/cordons/lift', { kind: 'card', name: 'GPU-1' }],
      ['/cordons', { kind: 'card', name: 'GPU-1', reason: 'fan', drain_seconds: null }]
    ]);
  });
  it('undo a resize by the share before, and the end of a session not at all', async () => {
    const done = await acts.resize(recorder, session(), [], true).run('urgent', '1/2');
    await done.undo?.();
    expect(asked.map(each => [each[2], each[3]])).toEqual([
      [{ share: '1/2' }, 'urgent'],
      [{ share: '1/4' }, 'undone: urgent']
    ]);
    expect((await acts.end(recorder, session()).run('abuse', '')).undo).toBeNull();
    expect((await acts.drain(recorder, { kind: 'node', name: 'n1' }, 'n1', 3, null).run('fire', '0')).undo).toBeNull();
  });
  it('set class and deadline, and undo with what was before', async () => {
    const answers = [waiting({ kind: 'batch', place: 3 }), waiting()];
    const told: unknown[] = [];
    const hub = {
      change: (...given: unknown[]) => {
        told.push(given[2]);
        return Promise.resolve(answers.shift());
      }
    } as unknown as Api;
    const before = waiting({ deadline: '2030-01-01T12:00:30+00:00' });
    const act = acts.prioritise(hub, before);
    await expect(act.run('why', 'interactive', before.deadline)).rejects.toThrow('Nothing is changed');
    const done = await act.run('a talk', 'batch', null);
    expect(done.message).toBe('bob is batch now: number 3 in the queue.');
    await done.undo?.();
    expect(told).toEqual([
      { kind: 'batch', deadline: null, reason: 'a talk' },
      { kind: 'interactive', deadline: before.deadline, reason: 'undone: a talk' }
    ]);
  });
  it('cannot be undone once it has its share', async () => {
    const hub = { change: () => Promise.resolve(waiting({ state: 'placed', place: null })) } as unknown as Api;
    expect((await acts.prioritise(hub, waiting()).run('now', 'inference-urgent', null)).undo).toBeNull();
  });
  it('show what cannot be chosen with its reason', () => {
    const options = [
      { share: '1/4', memory_bytes: 1, price_per_hour: '1', available: true, reason: null, current: true },
      { share: '1', memory_bytes: 1, price_per_hour: '1', available: false, reason: 'Others hold 2/8 of this card.', current: false }
    ];
    const html = renderToStaticMarkup(
      <ActForm act={acts.resize(api, session(), options, true)} onDone={nothing} onCancel={nothing} />
    );
    expect(html).toMatch(/disabled="" value="1"|value="1"[^>]*disabled=""|disabled=""[^>]*value="1"/);
    expect(html).toContain('Others hold 2/8 of this card.');
    expect(html).toMatch(/type="submit"[^>]*aria-disabled="true"/);
  });
});
