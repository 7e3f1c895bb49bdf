/** Keeps the state up to date while the tab is visible; costs nothing while it is hidden. */

import type { Event } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { GPUAPI, RefusedError } from './api';
import { Action, INITIAL, reduce, State } from './state';
import type { Status, Telemetry } from './types';

const SCHEMA_ID = 'urn:gpuspawner:telemetry:1';
/** Telemetry is asked for so many seconds, and asked for again well before they are over. */
const WATCH_SECONDS = 30;
const RENEW_MS = 20_000;
/** After a failure, sooner. */
const RETRY_MS = 5_000;
/** Without an event for so long, the last readings are no longer shown as now. */
const SILENCE_MS = 6_000;

export class GPUModel implements IDisposable {
  constructor(
    private readonly api: GPUAPI,
    private readonly events: Event.Stream
  ) {
    this.events.connect(this.onEvent, this);
    document.addEventListener('visibilitychange', this.onVisibility);
    this.onVisibility();
  }

  get state(): State {
    return this._state;
  }

  get changed(): ISignal<this, State> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    if (this._disposed) {
      return;
    }
    this._disposed = true;
    this.events.disconnect(this.onEvent, this);
    document.removeEventListener('visibilitychange', this.onVisibility);
    this.rest();
    Signal.clearData(this);
  }

  /** Ask the server now: renews the telemetry and fetches the options. */
  async refresh(): Promise<void> {
    if (this._refreshing) {
      return this._refreshing;
    }
    this._refreshing = this.ask();
    try {
      await this._refreshing;
    } finally {
      this._refreshing = null;
    }
  }

  async resize(share: string): Promise<void> {
    if (this._state.resize.phase === 'running') {
      return;
    }
    const from = this._state.session?.share ?? 'unknown';
    this.dispatch({ type: 'resize-started', share });
    try {
      this.dispatch({ type: 'resize-done', from, answer: await this.api.resize(share) });
    } catch (error) {
      if (!(error instanceof RefusedError)) {
        throw error;
      }
      this.dispatch({ type: 'resize-refused', fault: error.fault });
    }
    await this.refresh();
  }

  /** Put the result of the last resize away. */
  forget(): void {
    this.dispatch({ type: 'resize-forgotten' });
  }

  private async ask(): Promise<void> {
    window.clearTimeout(this._renewal);
    let wait = RENEW_MS;
    try {
      const status = await this.api.watch(WATCH_SECONDS);
      this.dispatch({ type: 'status', status });
      if (!status.configured) {
        return; // a server without a share never gets one: nothing to ask for again
      }
      this.listen();
    } catch (error) {
      if (!(error instanceof RefusedError)) {
        throw error;
      }
      wait = RETRY_MS;
      const told = error.body as Partial<Status>;
      if (error.status === 404 && this._state.presence === 'unknown' && !told.configured) {
        return; // the server has no such extension
      }
      this.dispatch({ type: 'status-failed', message: error.message, status: told });
    }
    if (!document.hidden && !this._disposed) {
      this._renewal = window.setTimeout(() => void this.refresh(), wait);
    }
  }

  private onEvent(_: unknown, emission: Event.Emission): void {
    if (emission.schema_id !== SCHEMA_ID || document.hidden) {
      return;
    }
    const telemetry = emission as unknown as Telemetry;
    this.listen();
    const { session } = this._state;
    this.dispatch({ type: 'telemetry', telemetry });
    // The share was changed elsewhere (magic, admin, policy): fetch its price and options.
    if (session && telemetry.share && telemetry.share !== session.share) {
      void this.refresh();
    }
  }

  private onVisibility = (): void => {
    if (document.hidden) {
      this.rest();
    } else {
      void this.refresh();
    }
  };

  private listen(): void {
    window.clearTimeout(this._silence);
    this._silence = window.setTimeout(() => this.dispatch({ type: 'silence' }), SILENCE_MS);
  }

  private rest(): void {
    window.clearTimeout(this._renewal);
    window.clearTimeout(this._silence);
  }

  private dispatch(action: Action): void {
    if (this._disposed) {
      return;
    }
    this._state = reduce(this._state, action);
    this._changed.emit(this._state);
  }

  private _state: State = INITIAL;
  private _changed = new Signal<this, State>(this);
  private _disposed = false;
  private _refreshing: Promise<void> | null = null;
  private _renewal = 0;
  private _silence = 0;
}
