/** What the service sends; field for field as it names it. Unknown is null. */

export interface Cordon {
  kind: 'card' | 'node';
  name: string;
  by: string;
  reason: string;
  since: string;
  ends: string | null;
}

export interface Card {
  uuid: string;
  node: string;
  index: number;
  name: string;
  model: string;
  simulated: boolean;
  memory: number;
  memory_used: number | null;
  utilization: number | null;
  temperature: number | null;
  power: number | null;
  health: 'ok' | 'warning' | 'failed' | 'unknown';
  health_reason: string | null;
  grade: string;
  /** Eighths in force, whoever holds them. */
  held: number;
  free: number;
  cordon: Cordon | null;
}

export interface Session {
  id: string;
  user: string;
  server: string;
  state: string;
  share: string;
  /** On each of its cards. */
  eighths: number;
  cards: string[];
  model: string;
  memory: number | null;
  memory_used: number | null;
  price: string;
  currency: string;
  created: string;
  burst: boolean;
  /** Whether it was asked to save, and how far that is. */
  parking: 'noticed' | 'saved' | 'stopping' | 'parked' | null;
}

/** A session that was asked to save, or is parked. `by`: the administrator who asked. */
export interface Parking {
  session: string;
  state: 'noticed' | 'saved' | 'stopping' | 'parked' | 'failed' | 'silent' | 'void';
  by: string | null;
  reason: string;
  since: string;
  due: string;
  said: string | null;
  back: string | null;
  card: string | null;
}

/** What the API says of a session besides. */
export interface FullSession {
  options: Option[];
  notices: { code: string; message: string }[];
  resizable: boolean;
  parking: Parking | null;
  park_reason: string | null;
}

/** A card to which a session could move; `reason`: why it cannot. */
export interface CardPlace {
  card: string;
  node: string;
  index: number;
  model: string;
  free_eighths: number;
  reason: string | null;
}

export const KINDS = ['inference-urgent', 'interactive', 'training', 'batch'] as const;

/** Somebody who waits for a share. */
export interface Waiting {
  id: string;
  user: string;
  server: string;
  state: string;
  share: string;
  kind: string;
  place: number | null;
  reason: string | null;
  waited_seconds: number;
  expected_low_seconds: number | null;
  expected_high_seconds: number | null;
  deadline: string | null;
  in_time: boolean | null;
  changed_by: string | null;
  changed_reason: string | null;
  parked: Parking | null;
  /** Whether the viewer may set class and deadline. */
  changeable: boolean;
}

export interface Hello {
  user: string | null;
  admin: boolean;
  all: boolean;
}

export interface Option {
  share: string;
  memory_bytes: number | null;
  price_per_hour: string | null;
  available: boolean;
  reason: string | null;
  current: boolean;
}

export interface CostSum {
  name: string;
  sessions: number;
  eighth_seconds: number;
  charge: string;
  cost: string | null;
  energy_mj: number | null;
  co2_ug: number | null;
}

export interface CostReport {
  start: string;
  end: string;
  by: string;
  currency: string;
  sums: CostSum[];
  idle: CostSum | null;
  node_cost: string | null;
  charge: string;
}

export interface AuditEntry {
  id: number;
  at: string;
  actor: string;
  action: string;
  user: string;
  session: string;
  asked: unknown;
  why: string;
  source: string;
  status: number;
}
