/** Requests to the server extension, below the server's own base URL. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { CheckpointAction, Resized, ServiceFault, Status } from './types';

/** An answer that says no; `body` is the whole answer. */
export class RefusedError extends Error {
  constructor(
    readonly status: number,
    readonly fault: ServiceFault,
    readonly body: Record<string, unknown>
  ) {
    super(fault.message);
  }
}

export class GPUAPI {
  constructor(private readonly settings: ServerConnection.ISettings) {}

  /** What is known now; asks for no telemetry. */
  status(): Promise<Status> {
    return this.ask<Status>('status', 'GET');
  }

  /** Ask for telemetry events for some seconds; answers with the status now. 0 seconds: the viewer has gone. */
  watch(viewer: string, seconds: number, detail: boolean): Promise<Status> {
    return this.ask<Status>('watch', 'POST', { viewer, seconds, detail });
  }

  change(wanted: { share: string } | { burst: boolean }): Promise<Resized> {
    return this.ask<Resized>('share', 'PATCH', wanted);
  }

  checkpoint(run: string, checkpoint: string, action: CheckpointAction): Promise<void> {
    return this.ask('checkpoints', 'POST', { run, checkpoint, action });
  }

  private async ask<T>(path: string, method: string, body?: object): Promise<T> {
    const url = URLExt.join(this.settings.baseUrl, 'gpuspawner', 'api', path);
    let response: Response;
    let parsed: unknown;
    try {
      response = await ServerConnection.makeRequest(
        url,
        body ? { method, body: JSON.stringify(body) } : { method },
        this.settings
      );
      parsed = await response.json();
    } catch {
      throw refused(0, 'Your Jupyter server cannot be reached.', {});
    }
    const answer = (typeof parsed === 'object' && parsed !== null ? parsed : {}) as Record<
      string,
      unknown
    >;
    if (!response.ok) {
      const fault = answer['error'] as ServiceFault | undefined;
      if (fault && typeof fault.message === 'string') {
        throw new RefusedError(response.status, fault, answer);
      }
      throw refused(
        response.status,
        `Your Jupyter server answered with status ${response.status}.`,
        answer
      );
    }
    return answer as T;
  }
}

function refused(status: number, message: string, body: Record<string, unknown>): RefusedError {
  return new RefusedError(status, { code: 'unreachable', message, field: null }, body);
}
