/** Requests to the service, by the page's cookie and its proof. No token is ever in an address. */

import { Parser, pause } from './events';
import type { Store } from './store';

/** Nothing heard for so long: the line is dead, though nobody has said so. */
const SILENCE_MS = 12_000;
/** Text of an event from which on the browser is let draw before the next one is read. */
const LONG = 20_000;

export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string
  ) {
    super(message);
  }
}

export class Api {
  constructor(
    readonly prefix: string,
    private readonly proof: string
  ) {}

  get<T>(path: string, query: Record<string, string | undefined> = {}): Promise<T> {
    const asked = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
      if (value) {
        asked.set(name, value);
      }
    }
    return this.ask<T>('GET', `${path}${asked.size ? `?${asked}` : ''}`);
  }

  /** A change. `reason` goes into the audit. */
  change<T>(method: string, path: string, body: object | undefined, reason: string): Promise<T> {
    return this.ask<T>(method, path, body, reason);
  }

  /** Keep the store up to date until `over` is aborted. */
  async follow(store: Store, over: AbortSignal): Promise<void> {
    let last: string | null = null;
    this.store = store;
    for (let tries = 0; !over.aborted; ) {
      const line = new AbortController();
      const stop = (): void => line.abort();
      over.addEventListener('abort', stop);
      let message = 'The connection was lost.';
      try {
        const wake = (): void => {
          store.connect({ phase: 'live', message: null, retry: null });
          tries = 0;
        };
        last = await this.read(store, line, last, wake);
      } catch (error) {
        if (error instanceof Refused) {
          if (error.status === 401) {
            store.connect({ phase: 'signed-out', message: null, retry: null });
            return;
          }
          message = error.message;
          if (error.status === 403) {
            store.connect({ phase: 'refused', message, retry: null });
            return;
          }
        }
        last = store.complete ? (this.last ?? last) : null;
      } finally {
        over.removeEventListener('abort', stop);
      }
      if (!over.aborted && store.connection.phase !== 'signed-out') {
        tries += 1;
        const wait = pause(tries, Math.random());
        store.connect({ phase: 'reconnecting', message, retry: Date.now() + wait });
        await new Promise<void>(resolve => {
          this.again = resolve;
          setTimeout(resolve, wait);
        });
      }
    }
  }

  /** Do not wait any longer before the next try. */
  tryNow(): void {
    this.again();
  }

  private async read(store: Store, line: AbortController, last: string | null, wake: () => void): Promise<string | null> {
    this.last = last;
    let silence = setTimeout(() => line.abort(), SILENCE_MS);
    try {
      const headers: Record<string, string> = { 'X-XSRFToken': this.proof, Accept: 'text/event-stream' };
      if (last !== null) {
        headers['Last-Event-ID'] = last;
      }
      const answer = await fetch(`${this.prefix}api/v1/panel/events`, { headers, signal: line.signal, cache: 'no-store' });
      if (!answer.ok || !answer.body) {
        throw await refused(answer);
      }
      const parser = new Parser();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) {
          return this.last;
        }
        clearTimeout(silence);
        silence = setTimeout(() => line.abort(), SILENCE_MS);
        for (const event of parser.push(value)) {
          if (event.kind === 'hello') {
            wake();
          }
          if (event.kind === 'bye') {
            store.connect({ phase: 'signed-out', message: null, retry: null });
            return null;
          }
          store.take(event.kind, JSON.parse(event.data));
          this.last = event.id ?? this.last;
          if (event.data.length > LONG) {
            await new Promise(resolve => setTimeout(resolve, 0));
          }
        }
      }
    } finally {
      clearTimeout(silence);
    }
  }

  private async ask<T>(method: string, path: string, body?: object, reason?: string): Promise<T> {
    const headers: Record<string, string> = { 'X-XSRFToken': this.proof };
    if (body) {
      headers['Content-Type'] = 'application/json';
    }
    if (reason) {
      // Headers are not for all languages, so the reason is written in ASCII.
      headers['X-GPUSpawner-Reason'] = `UTF-8''${encodeURIComponent(reason)}`;
    }
    let answer: Response;
    try {
      answer = await fetch(`${this.prefix}api/v1${path}`, { method, headers, body: body && JSON.stringify(body) });
    } catch {
      throw new Refused(0, 'unreachable', 'The service cannot be reached. Nothing was changed, or nobody can say.');
    }
    if (!answer.ok) {
      if (answer.status === 401) {
        this.store?.connect({ phase: 'signed-out', message: null, retry: null });
      }
      throw await refused(answer);
    }
    return (await answer.json()) as T;
  }

  private store: Store | null = null;
  private last: string | null = null;
  private again: () => void = () => undefined;
}

async function refused(answer: Response): Promise<Refused> {
  try {
    const { error } = (await answer.json()) as { error: { code: string; message: string } };
    return new Refused(answer.status, error.code, error.message);
  } catch {
    return new Refused(answer.status, 'unknown', `The service answered with status ${answer.status}.`);
  }
}
