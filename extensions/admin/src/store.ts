/** What is known, as the stream tells it. No drawing in here. */

import type { Card, Hello, Session } from './types';

export type Phase = 'loading' | 'live' | 'reconnecting' | 'signed-out' | 'refused';

export interface Connection {
  phase: Phase;
  /** Why, in one sentence. */
  message: string | null;
  /** When it is tried again, milliseconds since the epoch. */
  retry: number | null;
  /** The service answers, but cannot see the cards. */
  problem: string | null;
}

export interface Node {
  name: string;
  cards: string[];
}

interface Change {
  at: string;
  cards: Record<string, Card | null>;
  sessions: Record<string, Session | null>;
}

const NONE: readonly Session[] = [];

/** Natural order: node2 before node10. */
export const natural = new Intl.Collator('en', { numeric: true }).compare;

export class Store {
  hello: Hello | null = null;
  connection: Connection = { phase: 'loading', message: null, retry: null, problem: null };
  cards = new Map<string, Card>();
  sessions = new Map<string, Session>();
  /** Whether everything has come at least once. */
  complete = false;
  /** When the service last looked, ISO 8601. */
  at: string | null = null;

  /** Called at most once a frame. */
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  connect(change: Partial<Connection>): void {
    this.connection = { ...this.connection, ...change };
    this.tell();
  }

  take(kind: string, body: unknown): void {
    switch (kind) {
      case 'hello':
        this.hello = body as Hello;
        break;
      case 'begin':
        this.coming = { cards: new Map(), sessions: new Map() };
        break;
      case 'part':
        this.takePart(body as { cards?: Card[]; sessions?: Session[] });
        break;
      case 'ready':
        this.swap();
        this.complete = true;
        this.at = (body as { at: string }).at;
        break;
      case 'change':
        this.takeChange(body as Change);
        break;
      case 'beat': {
        const beat = body as { problem: string | null; at?: string };
        this.at = beat.at ?? this.at;
        this.connection = { ...this.connection, problem: beat.problem };
      }
    }
    this.tell();
  }

  /** The sessions on a card, in the order in which they came; the same array while nothing about them changes. */
  holders(uuid: string): readonly Session[] {
    if (this.index === null) {
      this.index = new Map();
      for (const session of [...this.sessions.values()].sort((a, b) => (a.created < b.created ? -1 : 1))) {
        for (const card of session.cards) {
          const there = this.index.get(card);
          if (there) {
            there.push(session);
          } else {
            this.index.set(card, [session]);
          }
        }
      }
    }
    return this.index.get(uuid) ?? NONE;
  }

  /** Nodes by name with their cards by index; the same array while there are the same cards. */
  nodes(): readonly Node[] {
    if (this.known === null) {
      const found = new Map<string, Card[]>();
      for (const card of this.cards.values()) {
        const cards = found.get(card.node);
        if (cards) {
          cards.push(card);
        } else {
          found.set(card.node, [card]);
        }
      }
      this.known = [...found]
        .sort((a, b) => natural(a[0], b[0]))
        .map(([name, cards]) => ({ name, cards: cards.sort((a, b) => a.index - b.index).map(card => card.uuid) }));
    }
    return this.known;
  }

  /** Ids of all sessions by user and server; the same array while there are the same sessions. */
  people(): readonly string[] {
    if (this.order === null) {
      const all = [...this.sessions.values()];
      all.sort((a, b) => natural(a.user, b.user) || natural(a.server, b.server) || (a.id < b.id ? -1 : 1));
      this.order = all.map(session => session.id);
    }
    return this.order;
  }

  private takePart(part: { cards?: Card[]; sessions?: Session[] }): void {
    const into = this.coming ?? this;
    for (const card of part.cards ?? []) {
      into.cards.set(card.uuid, card);
    }
    for (const session of part.sessions ?? []) {
      into.sessions.set(session.id, session);
    }
    if (!this.complete && this.coming) {
      // The first time what has come is shown at once.
      this.cards = this.coming.cards;
      this.sessions = this.coming.sessions;
      this.forget();
    }
  }

  private swap(): void {
    if (this.coming) {
      this.cards = this.coming.cards;
      this.sessions = this.coming.sessions;
      this.coming = null;
      this.forget();
    }
  }

  private takeChange(change: Change): void {
    this.at = change.at;
    for (const [uuid, card] of Object.entries(change.cards)) {
      const old = this.cards.get(uuid);
      if (card === null) {
        this.cards.delete(uuid);
      } else {
        this.cards.set(uuid, card);
      }
      if (!old || !card || old.node !== card.node || old.index !== card.index) {
        this.known = null;
      }
    }
    for (const [id, session] of Object.entries(change.sessions)) {
      const old = this.sessions.get(id);
      if (old) {
        this.leave(old);
      }
      if (session === null) {
        this.sessions.delete(id);
      } else {
        this.sessions.set(id, session);
        if (this.index) {
          this.enter(session, old);
        }
      }
      if (!old || !session) {
        this.order = null;
      }
    }
  }

  private enter(session: Session, old?: Session): void {
    for (const uuid of session.cards) {
      const before = this.index?.get(uuid) ?? [];
      const place = old ? before.findIndex(each => each.created > old.created) : -1;
      const after = before.filter(each => each.id !== session.id);
      after.splice(place < 0 ? after.length : place, 0, session);
      this.index?.set(uuid, after);
    }
  }

  private leave(session: Session): void {
    for (const uuid of session.cards) {
      const before = this.index?.get(uuid);
      if (before) {
        this.index?.set(uuid, before.filter(each => each.id !== session.id));
      }
    }
  }

  private forget(): void {
    this.index = this.known = this.order = null;
  }

  private tell(): void {
    if (!this.told) {
      this.told = true;
      const frame = globalThis.requestAnimationFrame ?? ((work: () => void) => setTimeout(work, 0));
      frame(() => {
        this.told = false;
        this.listeners.forEach(listener => listener());
      });
    }
  }

  private listeners = new Set<() => void>();
  private coming: { cards: Map<string, Card>; sessions: Map<string, Session> } | null = null;
  private index: Map<string, Session[]> | null = null;
  private known: readonly Node[] | null = null;
  private order: readonly string[] | null = null;
  private told = false;
}
