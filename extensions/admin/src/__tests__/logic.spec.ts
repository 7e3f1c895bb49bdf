import { Parser, pause } from '../events';
import * as link from '../link';
import { begin } from '../spending';
import { cardRows, offsets, rowAt, sessionRows } from '../rows';
import { Store } from '../store';
import type { Card, Session } from '../types';
import { expected, carbon, cells, energy, spoken } from '../words';
import { card, session } from './samples';

function filled(cards: Card[], sessions: Session[]): Store {
  const store = new Store();
  store.take('begin', {});
  store.take('part', { cards });
  store.take('part', { sessions });
  store.take('ready', { at: '2026-01-01T12:00:00+00:00' });
  return store;
}

describe('events', () => {
  it('are the same however they are cut', () => {
    const text = 'id: a-1\nevent: change\ndata: {"x":1}\n\nevent: beat\ndata: {}\n\n: a remark\n\n';
    for (let cut = 0; cut <= text.length; cut += 1) {
      const parser = new Parser();
      const found = [...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))];
      expect(found).toEqual([
        { kind: 'change', id: 'a-1', data: '{"x":1}' },
        { kind: 'beat', id: null, data: '{}' }
      ]);
    }
    const parser = new Parser();
    expect([...text].flatMap(letter => parser.push(letter))).toHaveLength(2);
  });
  it('are waited for longer and longer, to a limit, by chance', () => {
    expect(pause(1, 0.5)).toBe(1000);
    expect(pause(3, 0.5)).toBe(4000);
    expect(pause(50, 0.5)).toBe(15_000);
    expect(pause(2, 0)).not.toBe(pause(2, 0.9));
  });
});

describe('the store', () => {
  it('shows the first parts at once and later ones when all have come', () => {
    const store = new Store();
    store.take('begin', {});
    store.take('part', { cards: [card()] });
    expect([store.cards.size, store.complete]).toEqual([1, false]);
    store.take('ready', { at: 'now' });
    store.take('begin', {});
    store.take('part', { cards: [card({ uuid: 'GPU-2' })] });
    expect([...store.cards.keys()]).toEqual(['GPU-1']);
    store.take('ready', { at: 'now' });
    expect([...store.cards.keys()]).toEqual(['GPU-2']);
  });
  it('follows a session that moves, grows and goes', () => {
    const store = filled([card(), card({ uuid: 'GPU-2', index: 1 })], [session({ id: 's-2', user: 'bob', created: '2026-01-02T12:00:00+00:00' }), session()]);
    const other = store.holders('GPU-2');
    expect(store.holders('GPU-1').map(each => each.id)).toEqual(['s-1', 's-2']);
    store.take('change', { at: 'x', cards: {}, sessions: { 's-1': session({ eighths: 4, share: '1/2' }) } });
    expect(store.holders('GPU-1').map(each => [each.id, each.eighths])).toEqual([['s-1', 4], ['s-2', 2]]);
    expect(store.holders('GPU-2')).toBe(other);
    store.take('change', { at: 'x', cards: {}, sessions: { 's-1': session({ cards: ['GPU-2'] }) } });
    expect(store.holders('GPU-1').map(each => each.id)).toEqual(['s-2']);
    expect(store.holders('GPU-2').map(each => each.id)).toEqual(['s-1']);
    store.take('change', { at: 'x', cards: { 'GPU-2': null }, sessions: { 's-1': null } });
    expect([store.holders('GPU-2').length, store.people().length, store.nodes()[0]?.cards]).toEqual([0, 1, ['GPU-1']]);
  });
  it('keeps its lists while only figures change', () => {
    const store = filled([card()], [session()]);
    const [nodes, people] = [store.nodes(), store.people()];
    store.take('change', { at: 'x', cards: { 'GPU-1': card({ power: 90 }) }, sessions: { 's-1': session({ memory_used: 5 }) } });
    expect(store.nodes()).toBe(nodes);
    expect(store.people()).toBe(people);
  });
  it('sorts nodes as people count', () => {
    const store = filled(['node10', 'node2', 'node1'].map((node, index) => card({ node, uuid: `GPU-${index}` })), []);
    expect(store.nodes().map(node => node.name)).toEqual(['node1', 'node2', 'node10']);
  });
  it('keeps what it has when the service sees nothing', () => {
    const store = filled([card()], []);
    store.take('beat', { problem: 'The driver does not answer.' });
    expect([store.connection.problem, store.cards.size]).toEqual(['The driver does not answer.', 1]);
    store.take('beat', { problem: null });
    expect(store.connection.problem).toBeNull();
  });
});

describe('a bar of eighths', () => {
  it('says who holds what, and what others hold', () => {
    const holders = [session(), session({ id: 's-2', user: 'bob', server: 'lab', eighths: 1 })];
    const found = cells(card({ held: 5 }), holders);
    expect(found.map(cell => cell.part)).toEqual([...Array(3).fill('held'), ...Array(2).fill('others'), ...Array(3).fill('free')]);
    expect(found.map(cell => cell.tone).slice(0, 3)).toEqual([0, 0, 1]);
    expect(found[2]?.title).toBe('bob / lab: 1/8');
    expect(spoken(card({ held: 5 }), holders)).toBe('Eighths: ann 2, bob / lab 1, others 2, free 3');
  });
  it('never has more than eight', () => {
    expect(cells(card({ held: 8 }), [session({ eighths: 8 }), session({ id: 's-2', eighths: 4 })])).toHaveLength(8);
  });
  it('does not call free what takes nothing new', () => {
    const cordon = { kind: 'card' as const, name: 'GPU-1', by: 'admin', reason: 'fan', since: 'x', ends: null };
    expect(cells(card({ cordon }), []).every(cell => cell.part === 'closed')).toBe(true);
    expect(cells(card({ health: 'failed' }), []).every(cell => cell.part === 'closed')).toBe(true);
  });
});

describe('lists', () => {
  const store = filled(
    [card(), card({ uuid: 'GPU-2', node: 'n2', free: 0, held: 8, utilization: 0 }), card({ uuid: 'GPU-3', node: 'n2', index: 1, utilization: null, health: 'warning' })],
    [session(), session({ id: 's-2', user: 'Bob', cards: ['GPU-2'] })]
  );
  const uuids = (words: string, filter: 'all' | 'trouble' | 'room' | 'idle'): string[] =>
    cardRows(store, words, filter).flatMap(row => (row.kind === 'card' ? [row.uuid] : []));
  it('find by node, model and user', () => {
    expect(uuids('', 'all')).toEqual(['GPU-1', 'GPU-2', 'GPU-3']);
    expect(uuids('bob', 'all')).toEqual(['GPU-2']);
    expect(uuids('n2', 'all')).toEqual(['GPU-2', 'GPU-3']);
    expect(sessionRows(store, 'BOB')).toEqual(['s-2']);
  });
  it('do not take unknown for idle', () => {
    expect(uuids('', 'idle')).toEqual(['GPU-2']);
    expect(uuids('', 'trouble')).toEqual(['GPU-3']);
    expect(uuids('', 'room')).toEqual(['GPU-1', 'GPU-3']);
  });
  it('know the row at a height', () => {
    const tops = offsets(4, index => (index % 2 ? 40 : 10));
    expect(tops).toEqual([0, 10, 50, 60, 100]);
    expect([-5, 0, 9, 10, 49, 50, 99, 1000].map(y => rowAt(tops, y))).toEqual([0, 0, 0, 1, 1, 2, 3, 3]);
    expect(rowAt([0], 10)).toBe(0);
  });
});

describe('addresses', () => {
  it('are read as they are written, whatever names are in them', () => {
    for (const name of ['GPU-1', 'a&b=c#d', '"><script>', 'Zoë/x']) {
      const place = { tab: 'sessions' as const, open: { kind: 'user' as const, name } };
      expect(link.read(link.write(place))).toEqual(place);
    }
    expect(link.read('#card=GPU-1')).toEqual({ tab: 'cards', open: { kind: 'card', name: 'GPU-1' } });
    expect(link.read('#tab=nothing&x=1')).toEqual({ tab: null, open: null });
  });
});

describe('periods', () => {
  it('begin at midnight', () => {
    const noon = new Date(2026, 2, 3, 12).getTime();
    expect(begin('today', noon)).toBe(String(new Date(2026, 2, 3).getTime() / 1000));
    expect(begin('week', noon)).toBe(String(new Date(2026, 1, 25).getTime() / 1000));
    expect(begin('month', noon)).toBeUndefined();
  });
});

describe('figures', () => {
  it('say unknown and not 0', () => {
    expect([energy(null), carbon(null), expected(null, 5, 0)]).toEqual(['unknown', 'unknown', 'unknown']);
    expect([energy(7.2e9), energy(0), carbon(1_500_000_000), carbon(0)]).toEqual(['2.0 kWh', '0 J', '1.5 kg', '0.00 g']);
    expect([expected(120, 660, 60), expected(5, 5, 0), expected(5, 9, 10)]).toEqual(['1 min to 10 min', '5 s', 'longer than expected']);
  });
});
