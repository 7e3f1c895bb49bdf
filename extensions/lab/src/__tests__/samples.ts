import type { Holder, Run, Session, Telemetry } from '../types';

export const GIB = 2 ** 30;

export function session(changes: Partial<Session> = {}): Session {
  return {
    id: 's1',
    state: 'running',
    share: '1/4',
    eighths: 2,
    model: 'h100-80gb',
    cards: [{ uuid: 'GPU-1', index: 0, name: 'NVIDIA H100 80GB HBM3 (simulated)' }],
    memory_bytes: 20 * GIB,
    memory_used_bytes: 3 * GIB,
    price_per_hour: '1.00',
    currency: 'EUR',
    grade: 'guarded',
    simulated: true,
    resizable: true,
    options: [
      option('1/8', 10, '0.63'),
      { ...option('1/4', 20, '1.00'), current: true },
      option('1/2', 40, '1.60'),
      {
        ...option('1', 80, '2.50'),
        available: false,
        reason: 'Others hold 2/8 of this card.'
      }
    ],
    ...changes
  };
}

function option(share: string, gib: number, price: string) {
  return {
    share,
    memory_bytes: gib * GIB,
    price_per_hour: price,
    available: true,
    reason: null,
    current: false
  };
}

export function telemetry(changes: Partial<Telemetry> = {}): Telemetry {
  return {
    at: '2026-01-01T00:00:00.000+00:00',
    available: true,
    reason: null,
    service_reason: null,
    share: '1/4',
    model: 'NVIDIA H100 80GB HBM3 (simulated)',
    simulated: true,
    grade: 'guarded',
    memory_used_bytes: 12.3 * GIB,
    memory_allowed_bytes: 20 * GIB,
    utilization_percent: 12,
    power_watts: 71.2,
    temperature_celsius: 34,
    ...changes
  };
}

export function holder(changes: Partial<Holder> = {}): Holder {
  return {
    kind: 'kernel',
    title: 'train.ipynb',
    pids: [11],
    path: 'train.ipynb',
    kernel_id: 'k1',
    kernel_name: 'python3',
    session_id: 's1',
    state: 'idle',
    ...changes
  };
}

export function run(changes: Partial<Run> = {}): Run {
  return {
    run: 'resnet',
    title: null,
    status: 'running',
    updated: '2026-01-01T12:00:00.000+00:00',
    next_due: '2026-01-01T12:10:00.000+00:00',
    checkpoints: [
      {
        name: 'step-1200',
        step: 1200,
        bytes: 400 * 2 ** 20,
        saved: '2026-01-01T12:00:00.000+00:00',
        verified: true,
        pinned: false
      }
    ],
    requests: [],
    answers: [],
    problem: null,
    ...changes
  };
}
