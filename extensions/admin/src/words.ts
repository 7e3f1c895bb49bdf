/** Words and figures of the page; those that the panel in JupyterLab has too come from there. */

import * as format from '../../lab/src/format';
import type { Cell } from '../../lab/src/eighths';
import type { Card, Session } from './types';

/** How many colours tell the holders of a card apart. */
export const TONES = 4;

export const HEALTH: Record<Card['health'], string> = {
  ok: 'good',
  warning: 'warning',
  failed: 'failed',
  unknown: format.UNKNOWN_WORD
};

/** `ann`, or `ann / lab` for a named server. */
export function whose(session: { user: string; server: string }): string {
  return session.server ? `${session.user} / ${session.server}` : session.user;
}

/** How long somebody who has waited so long may still have to, as far as anybody can say. All in seconds. */
export function expected(low: number | null, high: number | null, waited: number): string {
  if (low === null || high === null) {
    return format.UNKNOWN_WORD;
  }
  if (waited > high) {
    return 'longer than expected';
  }
  const [from, to] = [low, high].map(each => format.duration(Math.max(0, each - waited) * 1000)) as [string, string];
  return from === to ? to : `${from} to ${to}`;
}

/** `3/8`; several cards are whole ones. */
export function held(session: Session): string {
  return session.eighths === 8 ? 'whole card' : `${session.eighths}/8`;
}

/** Somebody's words with one full stop at their end. */
export function sentence(text: string): string {
  return `${text.trim().replace(/\.$/, '')}.`;
}

/** What a session does, or what is done about it. */
export function stateOf(session: Session): string {
  switch (session.parking) {
    case 'noticed':
      return 'asked to save';
    case 'saved':
    case 'stopping':
      return 'being parked';
    default:
      return session.state;
  }
}

export function cardName(card: Card): string {
  return `Card ${card.index}`;
}

/** What each eighth of a card is. What is held by somebody whom the viewer may not see is `others`. */
export function cells(card: Card, holders: readonly Session[]): Cell[] {
  const found: Cell[] = [];
  holders.forEach((session, index) => {
    for (let eighth = 0; eighth < session.eighths; eighth += 1) {
      found.push({ part: 'held', tone: index % TONES, title: `${whose(session)}: ${held(session)}` });
    }
  });
  while (found.length < Math.min(8, card.held)) {
    found.push({ part: 'others', title: 'held by others' });
  }
  const closed = card.cordon !== null || card.health === 'failed';
  while (found.length < 8) {
    found.push(closed ? { part: 'closed', title: 'free, but takes nothing new' } : { part: 'free', title: 'free' });
  }
  return found.slice(0, 8);
}

/** The bar in words, for who does not see it. */
export function spoken(card: Card, holders: readonly Session[]): string {
  const theirs = holders.map(session => `${whose(session)} ${session.eighths}`);
  const known = holders.reduce((sum, session) => sum + session.eighths, 0);
  if (card.held > known) {
    theirs.push(`others ${card.held - known}`);
  }
  const free = Math.max(0, 8 - Math.max(card.held, known));
  return `Eighths: ${[...theirs, `free ${free}`].join(', ')}`;
}

/** Whether something about a card wants attention. */
export function troubled(card: Card): boolean {
  return card.health === 'warning' || card.health === 'failed' || card.cordon !== null;
}

/** Energy in millijoules as people read it. */
export function energy(millijoules: number | null): string {
  if (millijoules === null) {
    return format.UNKNOWN_WORD;
  }
  const kilowattHours = millijoules / 3.6e9;
  return kilowattHours >= 1 ? `${kilowattHours.toFixed(1)} kWh` : format.energy(millijoules / 1000);
}

/** Micrograms of carbon dioxide. */
export function carbon(micrograms: number | null): string {
  if (micrograms === null) {
    return format.UNKNOWN_WORD;
  }
  const grams = micrograms / 1e6;
  return grams >= 1000 ? `${(grams / 1000).toFixed(1)} kg` : `${grams.toFixed(grams < 10 ? 2 : 0)} g`;
}

export function clock(time: string | null): string {
  const at = time ? new Date(time) : null;
  return at && Number.isFinite(at.getTime()) ? at.toLocaleTimeString() : format.UNKNOWN_WORD;
}

export function moment(time: string): string {
  const at = new Date(time);
  return Number.isFinite(at.getTime()) ? at.toLocaleString() : format.UNKNOWN_WORD;
}
