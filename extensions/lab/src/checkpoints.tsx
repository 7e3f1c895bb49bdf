/** The checkpoints of this session's runs. */

import * as React from 'react';

import * as format from './format';
import type { State } from './state';
import type { Checkpoint, CheckpointAction, Run } from './types';

/** Checkpoints of a run that are shown before the rest is asked for. */
const FEW = 4;

export type OnCheckpoint = (run: Run, checkpoint: Checkpoint, action: CheckpointAction) => void;

export function Checkpoints(props: { state: State; now: number; onAsk: OnCheckpoint }): React.JSX.Element {
  const runs = props.state.detail?.runs;
  if (!runs) {
    return <p className="jp-gpu-quiet">Being looked up…</p>;
  }
  if (runs.length === 0) {
    return (
      <p className="jp-gpu-quiet">
        No run has saved a checkpoint here yet. Training that saves them by the library <code>gpuspawner-runtime</code>{' '}
        appears here by itself, and its checkpoints can then be restored and pinned.
      </p>
    );
  }
  return (
    <>
      {runs.map(run => (
        <RunRows key={run.run} run={run} {...props} />
      ))}
    </>
  );
}

/** Why no time stands where the next checkpoint's does. */
function noneDue(status: string | null): string {
  return status && status !== 'running' ? 'Nothing trains now' : 'When the next is due is unknown';
}

function RunRows(props: { run: Run; state: State; now: number; onAsk: OnCheckpoint }): React.JSX.Element {
  const { run, now } = props;
  const [all, showAll] = React.useState(false);
  const due = format.due(run.next_due, now);
  const refused = run.answers[run.answers.length - 1];
  const shown = all ? run.checkpoints : run.checkpoints.slice(0, FEW);
  return (
    <div className="jp-gpu-run">
      <h4 title={run.title ?? run.run}>
        <span>{run.title ?? run.run}</span>
        {run.status && <span className="jp-gpu-chip">{run.status}</span>}
      </h4>
      {run.problem ? (
        <p className="jp-gpu-note">{run.problem}</p>
      ) : (
        <p className="jp-gpu-quiet">{due ? `Next checkpoint ${due}` : noneDue(run.status)}</p>
      )}
      {refused?.outcome === 'refused' && (
        <p className="jp-gpu-note">{refused.message ?? 'The run refused the last request.'}</p>
      )}
      <ul className="jp-gpu-list">
        {shown.map(checkpoint => (
          <CheckpointRow key={checkpoint.name} checkpoint={checkpoint} {...props} />
        ))}
      </ul>
      {!run.problem && run.checkpoints.length === 0 && <p className="jp-gpu-quiet">None saved yet.</p>}
      {run.checkpoints.length > FEW && (
        <button type="button" className="jp-gpu-link" aria-expanded={all} onClick={() => showAll(!all)}>
          {all ? 'Show fewer' : `Show all ${run.checkpoints.length}`}
        </button>
      )}
    </div>
  );
}

const VERIFIED = new Map([
  [true, { text: '✓ verified', tone: 'good' }],
  [false, { text: '✕ damaged', tone: 'bad' }]
]);

function CheckpointRow(props: {
  run: Run;
  checkpoint: Checkpoint;
  state: State;
  now: number;
  onAsk: OnCheckpoint;
}): React.JSX.Element {
  const { run, checkpoint, now, onAsk } = props;
  const waits = run.requests.filter(request => request.checkpoint === checkpoint.name);
  const acting = props.state.acting.includes(`${run.run}/${checkpoint.name}`);
  const verified = checkpoint.verified === null ? null : VERIFIED.get(checkpoint.verified)!;
  const pinned = checkpoint.pinned === true;
  return (
    <li>
      <div className="jp-gpu-holder-head">
        <span className="jp-gpu-holder-title" title={checkpoint.name}>
          {checkpoint.name}
        </span>
        <span className="jp-gpu-verified" data-tone={verified?.tone ?? 'unknown'}>
          {verified?.text ?? 'not verified yet'}
        </span>
      </div>
      <div className="jp-gpu-quiet">
        {[
          checkpoint.step === null ? 'step unknown' : `step ${checkpoint.step.toLocaleString('en')}`,
          format.size(checkpoint.bytes),
          format.ago(checkpoint.saved, now)
        ].join(' · ')}
      </div>
      <div className="jp-gpu-holder-foot">
        <span className="jp-gpu-quiet" role="status">
          {waits.map(request => `Asked to ${request.action}; waiting for the run.`).join(' ')}
        </span>
        <span className="jp-gpu-buttons">
          <button
            type="button"
            className="jp-gpu-button"
            aria-pressed={pinned}
            aria-label={`Pin ${checkpoint.name}`}
            title="A pinned checkpoint is kept when older ones are removed"
            aria-disabled={acting}
            onClick={() => !acting && onAsk(run, checkpoint, pinned ? 'unpin' : 'pin')}
          >
            {pinned ? 'Pinned' : 'Pin'}
          </button>
          <button
            type="button"
            className="jp-gpu-button"
            aria-label={`Restore ${checkpoint.name}`}
            aria-disabled={acting}
            onClick={() => !acting && onAsk(run, checkpoint, 'restore')}
          >
            Restore
          </button>
        </span>
      </div>
    </li>
  );
}
