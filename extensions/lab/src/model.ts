/** Keeps the state up to date while somebody looks; costs nothing while nobody does. */

import type { Event } from '@jupyterlab/services';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { GPUAPI, RefusedError } from './api';
import { History } from './history';
import { Action, INITIAL, reduce, State } from './state';
import type { CheckpointAction, Holder, Status, Telemetry } from './types';

const SCHEMA_ID = 'urn:gpuspawner:telemetry:1';
/** Telemetry is asked for so many seconds, and asked for again well before they are over. */
const WATCH_SECONDS = 60;
const RENEW_MS = 45_000;
/** After a failure, sooner. */
const RETRY_MS = 5_000;
/** Without an event for so long, the last readings are no longer shown as now. */
const SILENCE_MS = 6_000;
/** What became of a request is shown for so long. */
const OUTCOME_MS = 12_000;

/** What the model needs of Jupyter's kernels. */
export interface Kernels {
  restart(kernelId: string): Promise<void>;
  shutdown(kernelId: string, sessionId: string | null): Promise<void>;
}

export class GPUModel implements IDisposable {
  constructor(
    private readonly api: GPUAPI,
    private readonly events: Event.Stream,
    private readonly kernels: Kernels
  ) {
    this.events.connect(this.onEvent, this);
    document.addEventListener('visibilitychange', this.follow);
  }

  readonly history = new History();

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
    this._looks.clear();
    this.follow();
    window.clearTimeout(this._forgetting);
    this._disposed = true;
    this.events.disconnect(this.onEvent, this);
    document.removeEventListener('visibilitychange', this.follow);
    Signal.clearData(this);
  }

  /** Somebody looks until this is disposed; `detail`: at a panel, which shows processes and checkpoints too. */
  look(detail: boolean): IDisposable {
    const look = { detail };
    this._looks.add(look);
    this.follow();
    return new DisposableDelegate(() => {
      this._looks.delete(look);
      this.follow();
    });
  }

  /** Ask the server now: renews the telemetry and fetches what changed. */
  async refresh(): Promise<void> {
    this._again = true;
    this._refreshing ??= this.refreshUntilDone();
    return this._refreshing;
  }

  async resize(share: string): Promise<void> {
    if (this._state.resize.phase === 'running') {
      return;
    }
    const from = this._state.session?.share ?? 'unknown';
    this.dispatch({ type: 'resize-started', share });
    try {
      this.dispatch({ type: 'resize-done', from, answer: await this.api.change({ share }) });
    } catch (error) {
      if (!(error instanceof RefusedError)) {
        throw error;
      }
      this.dispatch({ type: 'resize-refused', fault: error.fault });
    }
    await this.refresh();
  }

  /** Let the session use compute that others leave idle, or not. */
  async setBurst(burst: boolean): Promise<void> {
    await this.act('burst', burst ? 'Burst is on.' : 'Burst is off.', async () => {
      const { session } = await this.api.change({ burst });
      this.dispatch({ type: 'burst', session });
    });
  }

  async restart(holder: Holder): Promise<void> {
    const id = holder.kernel_id;
    if (id !== null) {
      await this.act(id, `${holder.title}: the kernel was restarted.`, () => this.kernels.restart(id));
    }
  }

  async shutdown(holder: Holder): Promise<void> {
    const id = holder.kernel_id;
    if (id !== null) {
      const work = (): Promise<void> => this.kernels.shutdown(id, holder.session_id);
      await this.act(id, `${holder.title}: the kernel was shut down.`, work);
    }
  }

  /** Ask the program of a run to restore, pin or unpin a checkpoint. */
  async ask(run: string, checkpoint: string, action: CheckpointAction): Promise<void> {
    const done = `Asked to ${action} ${checkpoint}. The run answers when it reads the request.`;
    await this.act(`${run}/${checkpoint}`, done, () => this.api.checkpoint(run, checkpoint, action));
  }

  /** Put the result of the last resize away. */
  forget(): void {
    this.dispatch({ type: 'resize-forgotten' });
  }

  private async act(what: string, done: string, work: () => Promise<void>): Promise<void> {
    if (this._state.acting.includes(what)) {
      return;
    }
    this.dispatch({ type: 'act-started', what });
    window.clearTimeout(this._forgetting);
    try {
      await work();
      this.dispatch({ type: 'act-ended', what, ok: true, message: done });
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      this.dispatch({ type: 'act-ended', what, ok: false, message });
    }
    this._forgetting = window.setTimeout(() => this.dispatch({ type: 'outcome-forgotten' }), OUTCOME_MS);
    await this.refresh();
  }

  private get looking(): boolean {
    return this._looks.size > 0 && !document.hidden && !this._disposed;
  }

  private get detailed(): boolean {
    return [...this._looks].some(look => look.detail);
  }

  /** Ask for telemetry, or give it back, as it is looked at now. */
  private follow = (): void => {
    const wanted = this.looking ? (this.detailed ? 'detail' : 'share') : 'none';
    if (wanted === this._asked || this._disposed) {
      return;
    }
    this._asked = wanted;
    if (wanted !== 'none') {
      void this.refresh();
      return;
    }
    window.clearTimeout(this._renewal);
    window.clearTimeout(this._silence);
    // Whether the server hears it or not, the lease ends by itself.
    void this.api.watch(this._viewer, 0, false).catch(() => undefined);
  };

  private async refreshUntilDone(): Promise<void> {
    try {
      while (this._again) {
        this._again = false;
        await this.askOnce();
      }
    } finally {
      this._refreshing = null;
    }
  }

  private async askOnce(): Promise<void> {
    window.clearTimeout(this._renewal);
    let wait = RENEW_MS;
    try {
      const status = this.looking
        ? await this.api.watch(this._viewer, WATCH_SECONDS, this.detailed)
        : await this.api.status();
      this.note(status.telemetry);
      this.dispatch({ type: 'status', status });
      if (!status.configured) {
        return; // a server without a share never gets one: nothing to ask for again
      }
    } catch (error) {
      if (!(error instanceof RefusedError)) {
        throw error;
      }
      wait = RETRY_MS;
      const told = error.body as Partial<Status>;
      if (error.status === 404 && this._state.presence === 'unknown' && !told.configured) {
        return; // the server has no such extension
      }
      this.note(told.telemetry ?? null);
      this.dispatch({ type: 'status-failed', message: error.message, status: told });
    }
    if (this.looking) {
      this.listen();
    }
    // Until a first answer nobody can look, since nothing is shown yet.
    if (this.looking || (this._state.presence === 'unknown' && !this._disposed)) {
      this._renewal = window.setTimeout(() => void this.refresh(), wait);
    }
  }

  private onEvent(_: unknown, emission: Event.Emission): void {
    if (emission.schema_id !== SCHEMA_ID || !this.looking) {
      return;
    }
    const telemetry = emission as unknown as Telemetry;
    const known = this._revision;
    this.listen();
    this.note(telemetry);
    const { session } = this._state;
    this.dispatch({ type: 'telemetry', telemetry });
    const changed = this.detailed && telemetry.revision !== undefined && telemetry.revision !== known;
    // The share was changed elsewhere (magic, admin, policy): fetch its price and options.
    if (changed || (session && telemetry.share && telemetry.share !== session.share)) {
      void this.refresh();
    }
  }

  private note(telemetry: Telemetry | null): void {
    if (telemetry) {
      this.history.push(telemetry, Date.now());
      this._revision = telemetry.revision ?? this._revision;
    }
  }

  private listen(): void {
    window.clearTimeout(this._silence);
    this._silence = window.setTimeout(() => {
      this.dispatch({ type: 'silence' });
      void this.refresh(); // the socket may be closed while the server is well
    }, SILENCE_MS);
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
  private _looks = new Set<{ detail: boolean }>();
  private _asked: 'none' | 'share' | 'detail' = 'none';
  private _viewer = Math.random().toString(36).slice(2) + Date.now().toString(36);
  private _revision: number | undefined = undefined;
  private _refreshing: Promise<void> | null = null;
  private _again = false;
  private _renewal = 0;
  private _silence = 0;
  private _forgetting = 0;
}
