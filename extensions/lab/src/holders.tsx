/** Who holds the memory, and what can be done about it. */

import * as React from 'react';

import * as format from './format';
import { Held, held, State } from './state';

export interface HolderActions {
  onOpen: (holder: Held) => void;
  onRestart: (holder: Held) => void;
  onShutdown: (holder: Held) => void;
}

export function Holders(props: { state: State; actions: HolderActions }): React.JSX.Element {
  const { state } = props;
  const rows = held(state);
  if (rows === null) {
    const why = state.detail === null ? 'Being looked up…' : 'The driver does not say which process holds how much.';
    return <p className="jp-gpu-quiet">{why}</p>;
  }
  if (rows.length === 0) {
    return <p className="jp-gpu-quiet">No kernel is running, and nothing holds memory of the card.</p>;
  }
  const allowed = state.telemetry?.memory_allowed_bytes ?? state.session?.memory_bytes ?? null;
  return (
    <ul className="jp-gpu-list">
      {rows.map(row => (
        <Row
          key={row.kernel_id ?? `pid ${row.pids.join()}`}
          row={row}
          allowed={allowed}
          acting={row.kernel_id !== null && state.acting.includes(row.kernel_id)}
          actions={props.actions}
        />
      ))}
    </ul>
  );
}

function Row(props: {
  row: Held;
  allowed: number | null;
  acting: boolean;
  actions: HolderActions;
}): React.JSX.Element {
  const { row, actions, acting } = props;
  const part = format.fraction(row.memory, props.allowed);
  const kernel = row.kind === 'kernel';
  return (
    <li>
      <div className="jp-gpu-holder-head">
        {kernel && row.path ? (
          <button
            type="button"
            className="jp-gpu-link"
            title={`Open ${row.path}`}
            onClick={() => actions.onOpen(row)}
          >
            {row.title}
          </button>
        ) : (
          <span className="jp-gpu-holder-title" title={row.title}>
            {row.title}
          </span>
        )}
        <span className="jp-gpu-holder-memory">
          {row.memory === null ? format.UNKNOWN_WORD : row.memory === 0 ? 'none' : `${format.gib(row.memory)} GiB`}
        </span>
      </div>
      {part !== null && row.memory !== 0 && (
        <span className="jp-gpu-bar" aria-hidden="true">
          <span style={{ width: `${part * 100}%` }} />
        </span>
      )}
      <div className="jp-gpu-holder-foot">
        <span className="jp-gpu-quiet">
          {kernel
            ? [row.kernel_name, acting ? 'working…' : row.state].filter(Boolean).join(' · ')
            : `process ${row.pids.join(', ')}, no kernel`}
        </span>
        {kernel && (
          <span className="jp-gpu-buttons">
            <button
              type="button"
              className="jp-gpu-button"
              aria-label={`Restart the kernel of ${row.title}`}
              aria-disabled={acting}
              onClick={() => !acting && actions.onRestart(row)}
            >
              Restart
            </button>
            <button
              type="button"
              className="jp-gpu-button"
              aria-label={`Shut down the kernel of ${row.title}`}
              aria-disabled={acting}
              onClick={() => !acting && actions.onShutdown(row)}
            >
              Shut down
            </button>
          </span>
        )}
      </div>
    </li>
  );
}
