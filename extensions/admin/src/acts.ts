/** The acts that there are, over the service's REST API. */

import * as format from '../../lab/src/format';
import { Act, Done, local } from './act';
import type { Api } from './api';
import { CardPlace, Cordon, KINDS, Option, Parking, Session, Waiting } from './types';
import { clock, moment, whose } from './words';

interface Target {
  kind: 'card' | 'node';
  name: string;
}

function said(target: Target, title: string): string {
  return target.kind === 'node' ? `Node ${target.name}` : title;
}

async function lifted(api: Api, target: Target, title: string, reason: string, before: Cordon | null): Promise<Done> {
  await api.change('POST', '/cordons/lift', { ...target }, reason);
  return {
    message: `${said(target, title)} is in use again.`,
    undo: before && (() => cordoned(api, target, title, before.reason, null, null))
  };
}

async function cordoned(
  api: Api,
  target: Target,
  title: string,
  reason: string,
  seconds: number | null,
  before: Cordon | null
): Promise<Done> {
  await api.change('POST', '/cordons', { ...target, reason, drain_seconds: seconds }, reason);
  const message =
    seconds === null
      ? `${said(target, title)} takes nothing new.`
      : `${said(target, title)} takes nothing new; its sessions end ${seconds ? `in ${format.duration(seconds * 1000)}` : 'now'}.`;
  const undo = before
    ? () => cordoned(api, target, title, before.reason, null, null)
    : () => lifted(api, target, title, `undone: ${reason}`, null);
  return { message, undo: seconds === 0 ? null : undo };
}

export function cordon(api: Api, target: Target, title: string): Act {
  return {
    title: `Take ${said(target, title)} out of use`,
    meaning: 'Nothing starts or grows there from now on. What runs there stays.',
    verb: 'Take out of use',
    reason: true,
    run: reason => cordoned(api, target, title, reason, null, null)
  };
}

export function drain(api: Api, target: Target, title: string, sessions: number, before: Cordon | null): Act {
  const those = sessions === 1 ? 'the session' : `the ${sessions} sessions`;
  return {
    title: `Drain ${said(target, title)}`,
    meaning: `Nothing new starts there, and ${those} there will be ended. Their users are told at once, with the reason.`,
    verb: 'Drain',
    reason: true,
    danger: true,
    choice: {
      label: 'Their sessions end',
      name: 'grace',
      first: '900',
      choices: [
        { value: '900', text: 'in 15 minutes' },
        { value: '3600', text: 'in an hour' },
        { value: '86400', text: 'in a day' },
        { value: '0', text: 'now (cannot be undone)' }
      ]
    },
    run: (reason, grace) => cordoned(api, target, title, reason, Number(grace), before)
  };
}

export function lift(api: Api, target: Target, title: string, before: Cordon): Act {
  return {
    title: `Take ${said(target, title)} back into use`,
    meaning: before.ends ? 'New sessions may start there again, and those that run there stay.' : 'New sessions may start there again.',
    verb: 'Take back into use',
    reason: true,
    run: reason => lifted(api, target, title, reason, before)
  };
}

async function resized(api: Api, session: Session, from: string, to: string, reason: string): Promise<Done> {
  await api.change('PATCH', `/sessions/${encodeURIComponent(session.id)}`, { share: to }, reason);
  return {
    message: `${whose(session)} has ${format.shownShare(to)} of the card now, ${format.shownShare(from)} before.`,
    undo: () => resized(api, session, to, from, reason && `undone: ${reason}`)
  };
}

export function resize(api: Api, session: Session, options: Option[], reason: boolean): Act {
  return {
    title: `Resize the share of ${whose(session)}`,
    meaning: 'The kernels keep running. A smaller share is refused while more memory is in use.',
    verb: 'Resize',
    reason,
    choice: {
      label: 'New share',
      name: 'share',
      first: session.share,
      choices: options.map(option => ({
        value: option.share,
        text: `${option.share === '1' ? 'whole card' : option.share} · ${format.gib(option.memory_bytes)} GiB · ${format.price(option.price_per_hour, session.currency)}`,
        why: option.current ? null : option.available ? null : (option.reason ?? 'Not free now.')
      }))
    },
    run: (why, share) => resized(api, session, session.share, share, why)
  };
}

export function end(api: Api, session: Session): Act {
  return {
    title: `End the session of ${whose(session)}`,
    meaning: 'Its processes are ended at once and its share is free again. What was not saved is lost; this cannot be undone.',
    verb: 'End the session',
    reason: true,
    danger: true,
    run: async reason => {
      await api.change('DELETE', `/sessions/${encodeURIComponent(session.id)}`, undefined, reason);
      return { message: `The session of ${whose(session)} was ended.`, undo: null };
    }
  };
}

interface Order {
  kind: string;
  deadline: string | null;
}

async function prioritised(api: Api, who: Waiting, from: Order, to: Order, reason: string): Promise<Done> {
  const changes = {
    ...(to.kind !== from.kind ? { kind: to.kind } : {}),
    ...(to.deadline !== from.deadline ? { deadline: to.deadline } : {})
  };
  if (!Object.keys(changes).length) {
    throw new Error('Nothing is changed. Choose another class or deadline.');
  }
  const path = `/queue/${encodeURIComponent(who.id)}`;
  const now = await api.change<Waiting>('PATCH', path, { ...changes, reason }, reason);
  const due = now.deadline ? `, due ${moment(now.deadline)}` : '';
  const at = now.state !== 'waiting' ? 'it has its share' : now.place ? `number ${now.place} in the queue` : 'it waits';
  return {
    message: `${whose(who)} is ${now.kind}${due} now: ${at}.`,
    undo: now.state === 'waiting' ? () => prioritised(api, who, to, from, `undone: ${reason}`) : null
  };
}

export function prioritise(api: Api, who: Waiting): Act {
  const from = { kind: who.kind, deadline: who.deadline };
  return {
    title: `Say when ${whose(who)} goes`,
    meaning:
      'The more urgent class goes first, and in a class the earliest deadline. Others who wait or run may have to give way for it. Its user sees the reason.',
    verb: 'Change',
    reason: true,
    choice: { label: 'Class', name: 'kind', first: who.kind, choices: KINDS.map(kind => ({ value: kind, text: kind })) },
    moment: { label: 'Deadline (empty: none)', first: who.deadline },
    // what the field shows is to the minute, so that what was not touched stays exactly as it is
    run: (reason, kind, deadline = null) =>
      prioritised(api, who, from, { kind, deadline: local(deadline) === local(from.deadline) ? from.deadline : deadline }, reason)
  };
}

export function leave(api: Api, who: Waiting): Act {
  return {
    title: `Take ${whose(who)} out of the queue`,
    meaning: 'Its start is refused with the reason, and its place is lost. This cannot be undone.',
    verb: 'Take out',
    reason: true,
    danger: true,
    run: async reason => {
      await api.change('DELETE', `/sessions/${encodeURIComponent(who.id)}`, undefined, reason);
      return { message: `${whose(who)} does not wait any more.`, undo: null };
    }
  };
}

/** Take back that a session is asked to save; one that is parked comes back as soon as there is room. */
async function released(api: Api, id: string, who: { user: string; server: string }, reason: string): Promise<Done> {
  const now = await api.change<Parking>('DELETE', `/sessions/${encodeURIComponent(id)}/park`, undefined, reason);
  const message =
    now.state === 'parked' ? `${whose(who)} comes back as soon as there is room.` : `${whose(who)} goes on as before.`;
  return { message, undo: null };
}

async function parked(
  api: Api,
  session: Session,
  body: { rest_minutes: number } | { card: string },
  reason: string
): Promise<Done> {
  const path = `/sessions/${encodeURIComponent(session.id)}/park`;
  const now = await api.change<Parking>('POST', path, { reason, ...body }, reason);
  return {
    message: `${whose(session)} is asked to save until ${clock(now.due)}, and is stopped once all is saved.`,
    undo: () => released(api, session.id, session, `undone: ${reason}`)
  };
}

const PARKING =
  'Its user is told at once, and its kernels are saved. Only if all is saved it is stopped; else it runs on. It keeps its place in the queue and comes back by itself with its kernels.';

export function park(api: Api, session: Session): Act {
  return {
    title: `Park the session of ${whose(session)}`,
    meaning: PARKING,
    verb: 'Park',
    reason: true,
    choice: {
      label: 'It comes back',
      name: 'rest',
      first: '60',
      choices: [
        { value: '0', text: 'as soon as there is room' },
        { value: '15', text: 'in 15 minutes, if there is room' },
        { value: '60', text: 'in an hour, if there is room' },
        { value: '720', text: 'in 12 hours, if there is room' }
      ]
    },
    run: (reason, rest) => parked(api, session, { rest_minutes: Number(rest) }, reason)
  };
}

/** Cards shown of those that have no place. */
const MOST = 12;

export function move(api: Api, session: Session, places: CardPlace[]): Act {
  const there = places.filter(each => each.reason === null);
  const others = places.filter(each => each.reason !== null).slice(0, MOST);
  return {
    title: `Move the session of ${whose(session)}`,
    meaning: `${PARKING} If others have taken the place by then, it waits for it.`,
    verb: 'Move',
    reason: true,
    choice: {
      label: 'To',
      name: 'card',
      first: there[0]?.card ?? '',
      choices: [...there.slice(0, 2 * MOST), ...others].map(each => ({
        value: each.card,
        text: `Card ${each.index} of ${each.node} · ${each.free_eighths}/8 free`,
        why: each.reason
      }))
    },
    run: (reason, card) => parked(api, session, { card }, reason)
  };
}

export function release(api: Api, parking: Parking, who: { user: string; server: string }): Act {
  const back = parking.state === 'parked';
  return {
    title: back ? `Let ${whose(who)} come back` : `Take back that ${whose(who)} is parked`,
    meaning: back ? 'It starts as soon as there is room.' : 'The notice is void, and it goes on as before.',
    verb: back ? 'Let it back' : 'Take it back',
    reason: true,
    run: reason => released(api, parking.session, who, reason)
  };
}
