/** What the server extension sends; field for field as the hub's service names it. */

export interface Card {
  uuid: string;
  index: number;
  name: string;
}

export interface Option {
  share: string;
  eighths?: number;
  memory_bytes: number | null;
  price_per_hour: string | null;
  available: boolean;
  reason: string | null;
  current: boolean;
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
  options: Option[];
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
}

export interface Status {
  configured: boolean;
  session: Session | null;
  telemetry: Telemetry | null;
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
}
