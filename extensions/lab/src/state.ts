/** The state of the item and its panel, and how it changes. Pure. */

import * as format from './format';
import type { Option, Resized, ServiceFault, Session, Status, Telemetry } from './types';

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
}

export type Action =
  | { type: 'status'; status: Status }
  | { type: 'status-failed'; message: string; status: Partial<Status> | null }
  | { type: 'telemetry'; telemetry: Telemetry }
  | { type: 'silence' }
  | { type: 'resize-started'; share: string }
  | { type: 'resize-done'; from: string; answer: Resized }
  | { type: 'resize-refused'; fault: ServiceFault }
  | { type: 'resize-forgotten' };

export const INITIAL: State = {
  presence: 'unknown',
  session: null,
  telemetry: null,
  stale: false,
  fault: null,
  resize: { phase: 'idle' }
};

export function reduce(state: State, action: Action): State {
  switch (action.type) {
    case 'status': {
      const { configured, session, telemetry } = action.status;
      if (!configured) {
        return { ...INITIAL, presence: 'none' };
      }
      return { ...state, presence: 'session', session, telemetry, stale: false, fault: null };
    }
    case 'status-failed': {
      const told = action.status;
      return {
        ...state,
        presence: told?.configured ? 'session' : state.presence,
        session: told?.session ?? state.session,
        telemetry: told?.telemetry ?? state.telemetry,
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
      const { session, applied_ms } = action.answer;
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
          message: `Resized from ${action.from} to ${session.share}${took}: ${format.gib(session.memory_bytes)} GiB allowed. Kernels kept running.`
        }
      };
    }
    case 'resize-refused':
      return { ...state, resize: { phase: 'refused', message: action.fault.message } };
    case 'resize-forgotten':
      return state.resize.phase === 'running' ? state : { ...state, resize: { phase: 'idle' } };
  }
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
  } else if (telemetry?.reason) {
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
  const lines = [
    `${v.share ?? format.UNKNOWN} of ${v.model ?? 'unknown card'}`,
    `Memory: ${format.memory(v.used, v.allowed)}`,
    `Utilisation ${format.reading(v.utilization, '%')} · power ${format.reading(v.power, 'W')} · ${format.reading(v.temperature, '°C')}`,
    `Limits: ${format.gradeMeaning(v.grade)}`
  ];
  if (v.simulated) {
    lines.push('This card is simulated: memory is real, compute is not.');
  }
  return [...lines, ...v.notes, 'Click to resize.'].join('\n');
}

/** What a screen reader says of the item. */
export function spoken(state: State): string {
  const v = view(state);
  const words = [
    `GPU share: ${format.spokenShare(v.share)}${v.simulated ? ', simulated card' : ''}`,
    v.used === null || v.allowed === null
      ? 'memory in use unknown'
      : `${format.gib(v.used)} of ${format.gib(v.allowed)} gibibytes in use`
  ];
  if (v.tone !== 'calm') {
    words.push(v.tone === 'full' ? 'memory is full' : 'memory is nearly full');
  }
  return [...words, 'open to resize'].join('. ');
}

/** The option to be shown as chosen: the wanted one as long as it exists, else the current one. */
export function chosen(options: Option[], wanted: string | null): Option | null {
  return (
    options.find(option => option.share === wanted) ??
    options.find(option => option.current) ??
    null
  );
}

/** What choosing an option would change, in a sentence. */
export function consequence(session: Session, option: Option): string {
  if (option.current) {
    return 'This is your share now.';
  }
  return (
    `Memory ${format.gib(session.memory_bytes)} → ${format.gib(option.memory_bytes)} GiB, ` +
    `price ${format.price(session.price_per_hour, session.currency)} → ${format.price(option.price_per_hour, session.currency)}. ` +
    'Kernels keep running.'
  );
}
