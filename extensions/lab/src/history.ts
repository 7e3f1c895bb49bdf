/** The readings of the last minutes, for the charts. A reading that is unknown stays a gap, as does time without readings. */

import type { Telemetry } from './types';

export const WINDOW_MS = 5 * 60_000;
/** Readings come once a second; without one for so long the line is broken. */
export const GAP_MS = 4_000;

export type Metric = 'memory' | 'utilization' | 'power' | 'temperature';

export interface Point {
  at: number;
  value: number | null;
}

export class History {
  /** Take over a reading that arrived at `at` (milliseconds of this browser's clock). The same one twice counts once. */
  push(telemetry: Telemetry, at: number): void {
    if (telemetry.at === this.newest) {
      return;
    }
    this.newest = telemetry.at;
    this.rows.push({
      at,
      memory: telemetry.memory_used_bytes,
      utilization: telemetry.utilization_percent,
      power: telemetry.power_watts,
      temperature: telemetry.temperature_celsius
    });
    const first = this.rows.findIndex(row => row.at >= at - WINDOW_MS - GAP_MS);
    this.rows.splice(0, Math.max(0, first));
  }

  points(metric: Metric): Point[] {
    return this.rows.map(row => ({ at: row.at, value: row[metric] }));
  }

  private newest = '';
  private rows: ({ at: number } & Record<Metric, number | null>)[] = [];
}

/** Unbroken pieces of a line: what stands on both sides of a gap is never joined. */
export function pieces(points: Point[]): { at: number; value: number }[][] {
  const found: { at: number; value: number }[][] = [];
  let piece: { at: number; value: number }[] = [];
  let before = -Infinity;
  for (const { at, value } of points) {
    if (value === null || !Number.isFinite(value)) {
      piece = [];
      continue;
    }
    if (!piece.length || at - before > GAP_MS) {
      piece = [];
      found.push(piece);
    }
    piece.push({ at, value });
    before = at;
  }
  return found;
}

/** The top of a scale: a round number that is not below what was reached. */
export function ceiling(points: Point[], least: number): number {
  const top = Math.max(least, ...points.map(point => point.value ?? 0));
  const step = 10 ** Math.floor(Math.log10(top)) / 2;
  return Math.ceil(top / step) * step;
}
