/** The part of the address after #: which list is shown, and what is open beside it. */

export const TABS = ['cards', 'sessions', 'queue', 'spending', 'audit'] as const;
export type Tab = (typeof TABS)[number];

export interface Open {
  kind: 'card' | 'node' | 'session' | 'user' | 'waiting';
  name: string;
}

export interface Place {
  tab: Tab | null;
  open: Open | null;
}

const KINDS = ['card', 'node', 'session', 'user', 'waiting'] as const;
/** Where what is open stands in a list. */
const LISTED: Record<Open['kind'], Tab> = {
  card: 'cards',
  node: 'cards',
  session: 'sessions',
  user: 'sessions',
  waiting: 'queue'
};

/** What an address names; what it does not know it leaves out. */
export function read(hash: string): Place {
  const given = new URLSearchParams(hash.replace(/^#/, ''));
  const tab = TABS.find(each => each === given.get('tab')) ?? null;
  const kind = KINDS.find(each => given.get(each));
  const open = kind ? { kind, name: (given.get(kind) ?? '').slice(0, 300) } : null;
  return { tab: tab ?? (open ? LISTED[open.kind] : null), open };
}

export function write(place: Place): string {
  const asked = new URLSearchParams();
  if (place.tab) {
    asked.set('tab', place.tab);
  }
  if (place.open) {
    asked.set(place.open.kind, place.open.name);
  }
  return `#${asked}`;
}
