import type { Card, Session, Waiting } from '../types';

export const GIB = 2 ** 30;

export function card(changes: Partial<Card> = {}): Card {
  return {
    uuid: 'GPU-1',
    node: 'n1',
    index: 0,
    name: 'NVIDIA H100 80GB HBM3',
    model: 'h100-80gb',
    simulated: false,
    memory: 80 * GIB,
    memory_used: 12 * GIB,
    utilization: 34,
    temperature: 41,
    power: 71.4,
    health: 'ok',
    health_reason: null,
    grade: 'guarded',
    held: 0,
    free: 8,
    cordon: null,
    ...changes
  };
}

export function session(changes: Partial<Session> = {}): Session {
  return {
    id: 's-1',
    user: 'ann',
    server: '',
    state: 'running',
    share: '1/4',
    eighths: 2,
    cards: ['GPU-1'],
    model: 'h100-80gb',
    memory: 20 * GIB,
    memory_used: null,
    price: '0.70',
    currency: 'EUR',
    created: '2026-01-01T12:00:00+00:00',
    burst: false,
    parking: null,
    ...changes
  };
}

export function waiting(changes: Partial<Waiting> = {}): Waiting {
  return {
    id: 's-2',
    user: 'bob',
    server: '',
    state: 'waiting',
    share: '1/2',
    kind: 'interactive',
    place: 2,
    reason: 'Others hold it.',
    waited_seconds: 60,
    expected_low_seconds: null,
    expected_high_seconds: null,
    deadline: null,
    in_time: null,
    changed_by: null,
    changed_reason: null,
    parked: null,
    changeable: true,
    ...changes
  };
}
