/** Which rows the lists have. Pure. */

import type { Store } from './store';
import type { Card, Session } from './types';
import { troubled } from './words';

export type Row = { kind: 'node'; name: string; cards: number } | { kind: 'card'; uuid: string };
export type Filter = 'all' | 'trouble' | 'room' | 'idle';

export const FILTERS: Record<Filter, string> = {
  all: 'All cards',
  trouble: 'With trouble or out of use',
  room: 'With room',
  idle: 'Held, but not computing'
};

function passes(card: Card, filter: Filter): boolean {
  switch (filter) {
    case 'trouble':
      return troubled(card);
    case 'room':
      return card.free > 0;
    case 'idle':
      return card.held > 0 && card.utilization === 0;
    default:
      return true;
  }
}

function text(card: Card): string {
  return `${card.node} ${card.model} ${card.name} ${card.uuid}`.toLowerCase();
}

function about(session: Session): string {
  return `${session.user} ${session.server} ${session.id} ${session.model} ${session.share}`.toLowerCase();
}

/** Nodes and below each its cards that fit `filter` and are about `words`. */
export function cardRows(store: Store, words: string, filter: Filter): Row[] {
  const wanted = words.trim().toLowerCase();
  const found: Row[] = [];
  for (const node of store.nodes()) {
    const cards = node.cards.filter(uuid => {
      const card = store.cards.get(uuid);
      if (!card || !passes(card, filter)) {
        return false;
      }
      return !wanted || text(card).includes(wanted) || store.holders(uuid).some(each => about(each).includes(wanted));
    });
    if (cards.length) {
      found.push({ kind: 'node', name: node.name, cards: cards.length });
      cards.forEach(uuid => found.push({ kind: 'card', uuid }));
    }
  }
  return found;
}

/** Ids of the sessions that are about `words`. */
export function sessionRows(store: Store, words: string): readonly string[] {
  const wanted = words.trim().toLowerCase();
  const all = store.people();
  return wanted ? all.filter(id => about(store.sessions.get(id) as Session).includes(wanted)) : all;
}

/** Where each row begins, and after the last where all end. */
export function offsets(count: number, height: (index: number) => number): number[] {
  const found = [0];
  for (let index = 0; index < count; index += 1) {
    found.push((found[index] as number) + height(index));
  }
  return found;
}

/** The last row that begins at or above `y`. */
export function rowAt(tops: readonly number[], y: number): number {
  let low = 0;
  let high = Math.max(0, tops.length - 2);
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if ((tops[middle] as number) <= y) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}
