/** The state of the item and its panel, and how it changes. Pure. */

import * as format from './format';
import type { Detail, Holder, Notice, Option, Resized, ServiceFault, Session, Status, Telemetry } from './types';

export type Resize =
  | { phase: 'idle' }
  | { phase: 'running'; share: string }
  | { phase: 'done'; message: string }
  | { phase: 'refused'; message: string };

export interface State {
  /** Whether there is a GPU session: not yet known, none, or one. */
  presence: 'unknown' | 'none' | 'session';
  session: Session | null;
  telemetry: Telemetry | null;
  /** The telemetry is too old to be shown as now. */
  stale: boolean;
  /** Why the share may be out of date. */
  fault: string | null;
  resize: Resize;
  /** Holders and runs; null until a panel has looked. */
  detail: Detail | null;
  /** What has been asked for and is under way: kernel ids and `run/checkpoint` names. */
  acting: readonly string[];
  /** What became of the last of these. */
  outcome: { ok: boolean; message: string } | null;
}

export type Action =
  | { type: 'status'; status: Status }
  | { type: 'status-failed'; message: string; status: Partial<Status> | null }
  | { type: 'telemetry'; telemetry: Telemetry }
  | { type: 'silence' }
  | { type: 'resize-started'; share: string }
  | { type: 'resize-done'; from: string; answer: Resized }
  | { type: 'resize-refused'; fault: ServiceFault }
  | { type: 'resize-forgotten' }
  | { type: 'act-started'; what: string }
  | { type: 'act-ended'; what: string; ok: boolean; message: string }
  | { type: 'outcome-forgotten' }
  | { type: 'burst'; session: Session };

export const INITIAL: State = {
  presence: 'unknown',
  session: null,
  telemetry: null,
  stale: false,
  fault: null,
  resize: { phase: 'idle' },
  detail: null,
  acting: [],
  outcome: null
};

export function reduce(state: State, action: Action): State {
  switch (action.type) {
    case 'status': {
      const { configured, session, telemetry } = action.status;
      if (!configured) {
        return { ...INITIAL, presence: 'none' };
      }
      const detail = action.status.detail ?? state.detail;
      // What came of a resize is no longer true when the share was changed elsewhere since.
      const over = state.resize.phase !== 'running' && session?.share !== state.session?.share;
      const resize: State['resize'] = over ? { phase: 'idle' } : state.resize;
      return { ...state, presence: 'session', session, telemetry, detail, resize, stale: false, fault: null };
    }
    case 'status-failed': {
      const told = action.status;
      return {
        ...state,
        presence: told?.configured ? 'session' : state.presence,
        session: told?.session ?? state.session,
        telemetry: told?.telemetry ?? state.telemetry,
        detail: told?.detail ?? state.detail,
        stale: told?.telemetry ? false : state.stale,
        fault: action.message
      };
    }
    case 'telemetry':
      return {
        ...state,
        presence: 'session',
        telemetry: action.telemetry,
        stale: false,
        fault: action.telemetry.service_reason
      };
    case 'silence':
      return state.telemetry ? { ...state, stale: true } : state;
    case 'resize-started':
      return { ...state, resize: { phase: 'running', share: action.share } };
    case 'resize-done': {
      const { session, applied_ms, notes } = action.answer;
      const took = typeof applied_ms === 'number' ? ` in ${format.milliseconds(applied_ms)}` : '';
      const telemetry = state.telemetry && {
        ...state.telemetry,
        share: session.share,
        memory_allowed_bytes: session.memory_bytes
      };
      return {
        ...state,
        session,
        telemetry,
        fault: null,
        resize: {
          phase: 'done',
          message: [
            `Resized from ${format.shownShare(action.from)} to ${format.shownShare(session.share)}${took}: ${format.gib(session.memory_bytes)} GiB allowed. Kernels kept running.`,
            ...(notes ?? [])
          ].join(' ')
        }
      };
    }
    case 'resize-refused':
      return { ...state, resize: { phase: 'refused', message: action.fault.message } };
    case 'resize-forgotten':
      return state.resize.phase === 'running' ? state : { ...state, resize: { phase: 'idle' } };
    case 'act-started':
      return { ...state, acting: [...state.acting, action.what], outcome: null };
    case 'act-ended':
      return {
        ...state,
        acting: state.acting.filter(what => what !== action.what),
        outcome: { ok: action.ok, message: action.message }
      };
    case 'outcome-forgotten':
      return { ...state, outcome: null };
    case 'burst':
      return { ...state, session: action.session };
  }
}

/** A session that was started with no card: known, and nothing to resize. */
export function cardless(state: State): boolean {
  return (state.session?.share ?? state.telemetry?.share) === 'none';
}

/** What is shown, taken from whichever source knows it best. */
export interface View {
  share: string | null;
  used: number | null;
  allowed: number | null;
  part: number | null;
  tone: format.Tone;
  simulated: boolean;
  model: string | null;
  grade: string | null;
  utilization: number | null;
  power: number | null;
  temperature: number | null;
  price: string | null;
  currency: string | null;
  /** Sentences about what is not known and why. */
  notes: string[];
}

export function view(state: State): View {
  const { session } = state;
  const telemetry = state.stale ? null : state.telemetry;
  const used = telemetry ? telemetry.memory_used_bytes : null;
  const allowed = telemetry?.memory_allowed_bytes ?? session?.memory_bytes ?? null;
  const part = format.fraction(used, allowed);
  const share = telemetry?.share ?? session?.share ?? null;
  const notes: string[] = [];
  if (state.fault) {
    notes.push(state.fault);
  }
  if (state.stale) {
    notes.push('No readings have arrived for some seconds.');
  } else if (telemetry?.reason && !cardless(state)) {
    notes.push(telemetry.reason);
  }
  return {
    share,
    used,
    allowed,
    part,
    tone: format.tone(part),
    simulated: telemetry?.simulated ?? session?.simulated ?? false,
    model: telemetry?.model ?? session?.cards[0]?.name ?? session?.model ?? null,
    grade: telemetry?.grade ?? session?.grade ?? null,
    utilization: telemetry?.utilization_percent ?? null,
    power: telemetry?.power_watts ?? null,
    temperature: telemetry?.temperature_celsius ?? null,
    // A price belongs to its share: after a resize from elsewhere the old one is wrong.
    price: session && session.share === share ? session.price_per_hour : null,
    currency: session?.currency ?? null,
    notes
  };
}

/** Lines of the item's tooltip. */
export function tooltip(state: State): string {
  const v = view(state);
  if (cardless(state)) {
    return [format.NO_CARD_MEANING, ...v.notes].join('\n');
  }
  const lines = [
    `${v.share ?? format.UNKNOWN} of ${v.model ?? 'unknown card'}`,
    `Memory: ${format.memory(v.used, v.allowed)}`,
    `Utilisation ${format.reading(v.utilization, '%')} · power ${format.reading(v.power, 'W')} · ${format.reading(v.temperature, '°C')}`,
    `Limits: ${format.gradeMeaning(v.grade)}`
  ];
  if (v.simulated) {
    lines.push(format.SIMULATED_MEANING);
  }
  return [...lines, ...v.notes, state.session?.resizable === false ? 'Click for more.' : 'Click to resize.'].join('\n');
}

/** What a screen reader says of the item. */
export function spoken(state: State): string {
  const v = view(state);
  if (cardless(state)) {
    return 'No card: this session computes on the CPU. Open to learn more';
  }
  const words = [
    `GPU share: ${format.spokenShare(v.share)}${v.simulated ? ', simulated card' : ''}`,
    v.used === null || v.allowed === null
      ? 'memory in use unknown'
      : `${format.gib(v.used)} of ${format.gib(v.allowed)} gibibytes in use`
  ];
  if (v.tone !== 'calm') {
    words.push(v.tone === 'full' ? 'memory is full' : 'memory is nearly full');
  }
  return [...words, state.session?.resizable === false ? 'open for more' : 'open to resize'].join('. ');
}

/** The option to be shown as chosen: the wanted one as long as it exists, else the current one. */
export function chosen(options: Option[], wanted: string | null): Option | null {
  return (
    options.find(option => option.share === wanted) ??
    options.find(option => option.current) ??
    null
  );
}

/** What choosing an option would change; `free` is what a shrink would need freed, null where that is not known. */
export interface Consequence {
  memory: string;
  price: string;
  kernels: string;
  free: number | null;
}

export function consequence(session: Session, option: Option, used: number | null): Consequence {
  const allowed = option.memory_bytes;
  return {
    memory: `${format.gib(session.memory_bytes)} → ${format.gib(allowed)} GiB`,
    price: `${session.price_per_hour ?? format.UNKNOWN} → ${format.price(option.price_per_hour, session.currency)}`,
    kernels:
      option.live === false ? 'The server has to start anew for this size.' : 'Kernels keep running.',
    free: used === null || allowed === null ? null : Math.max(0, used - allowed)
  };
}

/** Eighths of the session's card: its own, what others hold, what is free. Null where they are not known. */
export interface Eighths {
  own: number;
  others: number;
  free: number;
}

export function eighthsOf(session: Session | null): Eighths | null {
  if (!session || session.cards.length !== 1 || session.eighths > 8) {
    return null;
  }
  const free = session.free_eighths;
  if (typeof free !== 'number') {
    return null;
  }
  const own = session.eighths;
  return { own, free, others: Math.max(0, 8 - own - free) };
}

/** Whether a share is smaller than the one that is held. */
export function shrinks(session: Session, option: Option): boolean {
  const now = session.memory_bytes;
  return now !== null && option.memory_bytes !== null && option.memory_bytes < now;
}

/** A holder with the memory that it holds now; null where the driver does not say. */
export interface Held extends Holder {
  memory: number | null;
}

/** Who holds memory now, the largest first, kernels that hold none last. Null where the driver does not say. */
export function held(state: State): Held[] | null {
  const processes = state.stale ? null : (state.telemetry?.processes ?? null);
  if (!state.detail || processes === null) {
    return null;
  }
  const sizes = new Map(processes.map(one => [one.pid, one.memory_bytes]));
  const rows = state.detail.holders.map(holder => {
    let memory: number | null = 0;
    for (const pid of holder.pids) {
      // A pid that the newest reading does not list has ended: it holds nothing.
      const size = sizes.has(pid) ? sizes.get(pid)! : 0;
      memory = memory === null || size === null ? null : memory + size;
    }
    return { ...holder, memory };
  });
  const kept = rows.filter(row => row.kind === 'kernel' || row.memory !== 0);
  return kept.sort((a, b) => (b.memory ?? Infinity) - (a.memory ?? Infinity));
}

/** What the card's own warnings and the hub's say, and until when something can be done. */
export function noticeText(notice: Notice, now: number): string {
  const until = format.due(notice.deadline, now);
  return until ? `${notice.message} (${until})` : notice.message;
}
