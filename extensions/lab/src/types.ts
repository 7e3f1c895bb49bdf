/** What the server extension sends; field for field as the hub's service names it. */

export interface Health {
  state: 'ok' | 'warning' | 'failed' | 'unknown';
  reason: string | null;
}

export interface Card {
  uuid: string;
  index: number;
  name: string;
  health?: Health | null;
}

export interface Option {
  share: string;
  eighths?: number;
  memory_bytes: number | null;
  price_per_hour: string | null;
  available: boolean;
  reason: string | null;
  current: boolean;
  /** False where this size needs the server to start anew. */
  live?: boolean | null;
}

export interface Notice {
  code: string;
  message: string;
  since?: string | null;
  deadline?: string | null;
}

export interface Session {
  id: string;
  state: string;
  share: string;
  eighths: number;
  model: string | null;
  cards: Card[];
  memory_bytes: number | null;
  memory_used_bytes: number | null;
  price_per_hour: string | null;
  currency: string | null;
  grade: string | null;
  simulated: boolean;
  resizable: boolean;
  /** How a resize is done: live, by a restart, or not at all. */
  resize?: string;
  options: Option[];
  free_eighths?: number | null;
  burst?: boolean | null;
  notices?: Notice[] | null;
}

export interface ProcessMemory {
  pid: number;
  memory_bytes: number | null;
}

export interface Telemetry {
  at: string;
  available: boolean;
  reason: string | null;
  service_reason: string | null;
  share: string | null;
  model: string | null;
  simulated: boolean | null;
  grade: string | null;
  memory_used_bytes: number | null;
  memory_allowed_bytes: number | null;
  utilization_percent: number | null;
  power_watts: number | null;
  temperature_celsius: number | null;
  energy_joules?: number | null;
  energy_since?: string | null;
  /** Only while a panel looks. */
  processes?: ProcessMemory[] | null;
  revision?: number;
}

/** A kernel, or a process of none, with its pids on the card. */
export interface Holder {
  kind: 'kernel' | 'process';
  title: string;
  pids: number[];
  path: string | null;
  kernel_id: string | null;
  kernel_name: string | null;
  session_id: string | null;
  state: string | null;
}

export interface Checkpoint {
  name: string;
  step: number | null;
  bytes: number | null;
  saved: string | null;
  verified: boolean | null;
  pinned: boolean | null;
}

export interface Run {
  run: string;
  title: string | null;
  status: string | null;
  updated: string | null;
  next_due: string | null;
  checkpoints: Checkpoint[];
  requests: { id: string; action: CheckpointAction; checkpoint: string; asked: string | null }[];
  answers: { id: string; outcome: 'done' | 'refused'; message: string | null }[];
  problem: string | null;
}

export type CheckpointAction = 'restore' | 'pin' | 'unpin';

export interface Detail {
  holders: Holder[];
  runs: Run[];
}

export interface Status {
  configured: boolean;
  session: Session | null;
  telemetry: Telemetry | null;
  detail?: Detail;
}

export interface ServiceFault {
  code: string;
  message: string;
  field: string | null;
  need_to_free_bytes?: number;
}

export interface Resized {
  session: Session;
  applied_ms?: number | null;
  /** What went wrong beside: functions that could not free their caches. */
  notes?: string[];
}
