/** Figures as people read them. Unknown (null) is a dash, never 0. */

export const UNKNOWN = '–';

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
      return 'kernel: held by the driver or the hardware';
    case 'guarded':
      return 'guarded: held by the driver library of this session';
    case 'advisory':
      return 'advisory: holds programs that keep to it';
    default:
      return grade ?? UNKNOWN;
  }
}
