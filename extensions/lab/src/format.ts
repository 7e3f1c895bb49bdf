/** Figures as people read them. Unknown (null) is a dash, never 0. */

export const UNKNOWN = '–';
/** Where there is room for a word. */
export const UNKNOWN_WORD = 'unknown';

/** The same words as in the hub's form. */
export const SIMULATED_MEANING =
  'Simulated card, played by software: memory behaves as on a real card, but GPU kernels are not computed.';

/** The same words as `%gpu` has in such a session. */
export const NO_CARD_MEANING =
  'This session runs without a card, as chosen at its start: programs compute on the CPU. ' +
  'For a share of a card, stop the server and start it again from the hub.';

/** Part of the allowed memory from which the item warns, and from which it calls out. */
export const NEARLY_FULL = 0.85;
export const FULL = 0.97;

export type Tone = 'calm' | 'warn' | 'full';

const GIB = 2 ** 30;

function known(value: number | null | undefined): value is number {
  return typeof value === 'number' && Number.isFinite(value);
}

/** Bytes as GiB with one decimal, without the unit. */
export function gib(bytes: number | null | undefined): string {
  return known(bytes) ? (bytes / GIB).toFixed(1) : UNKNOWN;
}

/** `12.3 / 20.0 GiB` */
export function memory(
  used: number | null | undefined,
  allowed: number | null | undefined
): string {
  return `${gib(used)} / ${gib(allowed)} GiB`;
}

/** Used of allowed, from 0 to 1; null when either is unknown. */
export function fraction(
  used: number | null | undefined,
  allowed: number | null | undefined
): number | null {
  if (!known(used) || !known(allowed) || allowed <= 0) {
    return null;
  }
  return Math.min(1, Math.max(0, used / allowed));
}

export function tone(part: number | null): Tone {
  if (part === null || part < NEARLY_FULL) {
    return 'calm';
  }
  return part < FULL ? 'warn' : 'full';
}

/** A rounded number with its unit, `71 W`; a dash when unknown. */
export function reading(value: number | null | undefined, unit: string): string {
  return known(value) ? `${Math.round(value)} ${unit}` : UNKNOWN;
}

/** `1.25 EUR/h`; the price is a decimal string and is shown as it came. */
export function price(
  perHour: string | null | undefined,
  currency: string | null | undefined
): string {
  return perHour ? `${perHour} ${currency ?? ''}`.trim() + '/h' : UNKNOWN;
}

/** Bytes with the unit that suits, for checkpoints: `400 MiB`. */
export function size(bytes: number | null | undefined): string {
  if (!known(bytes)) {
    return 'size unknown';
  }
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** Energy in watt-hours, small amounts in joules. */
export function energy(joules: number | null | undefined): string {
  if (!known(joules)) {
    return UNKNOWN_WORD;
  }
  const wattHours = joules / 3600;
  if (wattHours < 0.1) {
    return `${Math.round(joules)} J`;
  }
  return `${wattHours.toFixed(wattHours < 10 ? 2 : 1)} Wh`;
}

/** A length of time in its largest unit, `5 min`. */
export function duration(milliseconds: number): string {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) {
    return `${seconds} s`;
  }
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) {
    return `${minutes} min`;
  }
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} d`;
}

/** How long ago an ISO 8601 time was; unknown stays unknown. A clock that runs ahead says `now`. */
export function ago(time: string | null | undefined, now: number): string {
  const at = time ? Date.parse(time) : NaN;
  return Number.isFinite(at) ? (at >= now - 500 ? 'now' : `${duration(now - at)} ago`) : 'age unknown';
}

/** When something is due: `in 4 min`, or by how much it is late; null when nothing is planned. */
export function due(time: string | null | undefined, now: number): string | null {
  const at = time ? Date.parse(time) : NaN;
  if (!Number.isFinite(at)) {
    return null;
  }
  return at >= now ? `in ${duration(at - now)}` : `overdue by ${duration(now - at)}`;
}

/** Eighths as a part of a card: `2/8`. */
export function eighths(count: number): string {
  return `${count}/8`;
}

/** Milliseconds with as many digits as matter. */
export function milliseconds(value: number | null | undefined): string {
  if (!known(value)) {
    return UNKNOWN;
  }
  if (value >= 1000) {
    return `${(value / 1000).toFixed(1)} s`;
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}

/** A share within a sentence. */
export function shownShare(share: string): string {
  return share === '1' ? 'the whole card' : share;
}

/** What the server holds, as a title. A bare 1 would be read as the number of a card. */
export function heldShare(share: string): string {
  if (share === '1') {
    return 'Whole GPU';
  }
  return /^\d+$/.test(share) ? `${share} GPUs` : `GPU ${share}`;
}

/** A share in words for people who listen: `1/4` is read as a date by many screen readers. */
export function spokenShare(share: string | null | undefined): string {
  switch (share) {
    case '1/8':
      return 'one eighth';
    case '1/4':
      return 'one quarter';
    case '1/2':
      return 'one half';
    case '1':
      return 'one whole card';
    case null:
    case undefined:
      return 'unknown share';
    default:
      return /^\d+$/.test(share) ? `${share} cards` : share;
  }
}

/** What the limits of a grade are worth, in a sentence. */
export function gradeMeaning(grade: string | null | undefined): string {
  switch (grade) {
    case 'kernel':
      return 'memory held by the driver or the card itself (grade: kernel)';
    case 'guarded':
      return 'memory held by the driver library of this session (grade: guarded)';
    case 'advisory':
      return 'held for programs that keep to it (grade: advisory)';
    default:
      return grade ?? UNKNOWN;
  }
}
