/** The model against an API that notes what it is asked, with the browser's clock and visibility played. */

import type { Event } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

jest.mock('../api', () => ({
  RefusedError: class extends Error {
    constructor(
      readonly status: number,
      readonly fault: { message: string },
      readonly body: object
    ) {
      super(fault.message);
    }
  }
}));

import { GPUAPI, RefusedError } from '../api';
import { GPUModel } from '../model';
import type { Status } from '../types';
import { holder, session, telemetry } from './samples';

const page = Object.assign(new EventTarget(), { hidden: false });
Object.assign(globalThis, { document: page, window: globalThis });

class API {
  asked: unknown[][] = [];
  failure: Error | null = null;
  answer: Status = { configured: true, session: session(), telemetry: telemetry({ revision: 1 }) };
  status = (): Promise<Status> => this.note('status');
  watch = (_viewer: string, seconds: number, detail: boolean): Promise<Status> =>
    this.note('watch', seconds, detail);
  change = async (wanted: object): Promise<unknown> => {
    await this.note('change', wanted);
    return { session: session({ share: '1/2', burst: true }), applied_ms: 3 };
  };
  checkpoint = (...words: unknown[]): Promise<unknown> => this.note('checkpoint', ...words);

  private async note(...words: unknown[]): Promise<Status> {
    this.asked.push(words);
    if (this.failure) {
      throw this.failure;
    }
    return this.answer;
  }
}

let api: API;
let model: GPUModel;
let send: (changes: object) => void;
const restarted: string[] = [];

beforeEach(() => {
  jest.useFakeTimers();
  page.hidden = false;
  api = new API();
  const owner = {};
  const stream = new Signal<object, Event.Emission>(owner);
  send = changes =>
    stream.emit({ schema_id: 'urn:gpuspawner:telemetry:1', ...telemetry(changes) } as never);
  model = new GPUModel(api as unknown as GPUAPI, stream as never, {
    restart: async id => void restarted.push(id),
    shutdown: async () => {
      throw new Error('It is gone already.');
    }
  });
});

afterEach(() => {
  model.dispose();
  jest.useRealTimers();
});

async function settle(): Promise<void> {
  await jest.advanceTimersByTimeAsync(0);
}

function hide(hidden: boolean): void {
  page.hidden = hidden;
  page.dispatchEvent(new globalThis.Event('visibilitychange'));
}

it('asks for no telemetry while nobody looks', async () => {
  await model.refresh();
  await jest.advanceTimersByTimeAsync(120_000);
  expect(api.asked).toEqual([['status']]);
  expect(model.state.presence).toBe('session');
});

it('renews while somebody looks and gives it back when a panel or the tab is hidden', async () => {
  const item = model.look(false);
  await settle();
  const panel = model.look(true);
  await settle();
  expect(api.asked).toEqual([
    ['watch', 60, false],
    ['watch', 60, true]
  ]);
  panel.dispose();
  await settle();
  expect(api.asked[2]).toEqual(['watch', 60, false]);
  hide(true);
  await settle();
  expect(api.asked[3]).toEqual(['watch', 0, false]);
  await jest.advanceTimersByTimeAsync(120_000);
  expect(api.asked).toHaveLength(4);
  hide(false);
  await settle();
  expect(api.asked[4]).toEqual(['watch', 60, false]);
  item.dispose();
  await settle();
  expect(api.asked[5]).toEqual(['watch', 0, false]);
});

it('fetches the details anew when the revision grew, not with every reading', async () => {
  model.look(true);
  await settle();
  send({ at: '1', revision: 1 });
  await settle();
  expect(api.asked).toHaveLength(1);
  api.answer = { ...api.answer, telemetry: telemetry({ at: '3', revision: 2 }), detail: { holders: [holder()], runs: [] } };
  send({ at: '2', revision: 2 });
  await settle();
  expect(api.asked).toHaveLength(2);
  expect(model.state.detail?.holders).toHaveLength(1);
});

it('marks readings as old and asks again when none arrive', async () => {
  model.look(true);
  await settle();
  const stale: boolean[] = [];
  model.changed.connect((_, state) => stale.push(state.stale));
  await jest.advanceTimersByTimeAsync(6_100);
  expect(stale[0]).toBe(true);
  expect(model.state.stale).toBe(false); // the answer brought new ones
  expect(api.asked).toHaveLength(2);
});

it('tries again soon after a failure, and says what failed', async () => {
  model.look(true);
  await settle();
  api.failure = new RefusedError(503, { message: 'down' } as never, {});
  await jest.advanceTimersByTimeAsync(6_100);
  expect(model.state.fault).toBe('down');
  const before = api.asked.length;
  await jest.advanceTimersByTimeAsync(5_100);
  expect(api.asked.length).toBeGreaterThan(before);
  api.failure = null;
  await jest.advanceTimersByTimeAsync(5_100);
  expect(model.state.fault).toBeNull();
});

it('tries again when the first question found nobody', async () => {
  api.failure = new RefusedError(0, { message: 'unreachable' } as never, {});
  await model.refresh();
  expect(model.state.presence).toBe('unknown');
  api.failure = null;
  await jest.advanceTimersByTimeAsync(5_100);
  expect(model.state.presence).toBe('session');
});

it('restarts a kernel, and says why one could not be shut down', async () => {
  await model.restart(holder());
  expect(restarted).toEqual(['k1']);
  expect(model.state.outcome).toEqual({ ok: true, message: 'train.ipynb: the kernel was restarted.' });
  await jest.advanceTimersByTimeAsync(13_000);
  expect(model.state.outcome).toBeNull();
  await model.shutdown(holder());
  expect(model.state.outcome).toEqual({ ok: false, message: 'It is gone already.' });
  expect(model.state.acting).toEqual([]);
});

it('asks for a checkpoint and switches burst', async () => {
  await model.ask('resnet', 'step-1', 'pin');
  expect(api.asked[0]).toEqual(['checkpoint', 'resnet', 'step-1', 'pin']);
  await model.setBurst(true);
  expect(api.asked).toContainEqual(['change', { burst: true }]);
  api.answer.session = session({ burst: true });
  await model.refresh();
  expect(model.state.session?.burst).toBe(true);
});
