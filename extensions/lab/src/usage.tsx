/** What is used now, and over the last minutes. */

import * as React from 'react';

import { Chart, Painter, Scale } from './charts';
import * as format from './format';
import { ceiling, History, Metric } from './history';
import { State, View } from './state';

interface Sources {
  history: History;
  painter: Painter;
}

/** Memory of the session. */
export function Memory(props: { v: View; sources: Sources }): React.JSX.Element {
  const { v, sources } = props;
  const allowed = v.allowed ?? 0;
  const points = sources.history.points('memory');
  return (
    <div className="jp-gpu-meter" data-tone={v.tone}>
      <div className="jp-gpu-reading">
        <span>Memory</span>
        <span className="jp-gpu-value">
          {v.used === null ? format.UNKNOWN_WORD : format.gib(v.used)} of {format.gib(v.allowed)} GiB
        </span>
      </div>
      {v.part === null ? (
        <span className="jp-gpu-bar" data-unknown="true" aria-hidden="true" />
      ) : (
        <span className="jp-gpu-bar" aria-hidden="true">
          <span style={{ width: `${v.part * 100}%` }} />
        </span>
      )}
      <Chart
        {...sources}
        metric="memory"
        scale={{ top: Math.max(ceiling(points, 1), allowed) * 1.05, mark: v.allowed }}
        label={`Memory over the last five minutes; now ${v.used === null ? 'unknown' : `${format.gib(v.used)} of ${format.gib(v.allowed)} GiB`}`}
      />
    </div>
  );
}

/** Readings of the whole card, whoever uses it. */
export function CardNow(props: { state: State; v: View; sources: Sources }): React.JSX.Element {
  const { v, sources } = props;
  const telemetry = props.state.stale ? null : props.state.telemetry;
  const since = telemetry?.energy_since ? new Date(telemetry.energy_since) : null;
  return (
    <>
      <Reading name="Utilisation" value={v.utilization} unit="%" metric="utilization" least={100} {...sources} />
      <Reading name="Power" value={v.power} unit="W" metric="power" least={100} {...sources} />
      <Reading name="Temperature" value={v.temperature} unit="°C" metric="temperature" least={90} {...sources} />
      <div className="jp-gpu-reading">
        <span>Energy{since ? ` since ${since.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' })}` : ''}</span>
        <span className="jp-gpu-value">{format.energy(telemetry?.energy_joules)}</span>
      </div>
    </>
  );
}

function Reading(
  props: Sources & { name: string; value: number | null; unit: string; metric: Metric; least: number }
): React.JSX.Element {
  const { history, metric, least } = props;
  const shown = props.value === null ? format.UNKNOWN_WORD : format.reading(props.value, props.unit);
  const scale: Scale = { top: ceiling(history.points(metric), least) };
  return (
    <div>
      <div className="jp-gpu-reading">
        <span>{props.name}</span>
        <span className="jp-gpu-value">{shown}</span>
      </div>
      <Chart
        history={history}
        painter={props.painter}
        metric={metric}
        scale={scale}
        label={`${props.name} over the last five minutes; now ${shown}`}
      />
    </div>
  );
}
