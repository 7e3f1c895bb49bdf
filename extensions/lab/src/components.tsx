/** What is drawn, from the state alone: no JupyterLab in here, so it can be tested anywhere. */

import * as React from 'react';

import * as format from './format';
import { chosen, consequence, spoken, State, tooltip, view } from './state';
import type { Option, Session } from './types';

/** The status-bar item: `GPU 1/4 ▬▬▭▭ 12.3 / 20.0 GiB`. */
export function StatusLine(props: {
  state: State;
  onOpen: () => void;
}): React.JSX.Element | null {
  const { state } = props;
  if (state.presence !== 'session') {
    return null;
  }
  const v = view(state);
  const percent = v.part === null ? 0 : v.part * 100;
  return (
    <button
      type="button"
      className="jp-gpu-item"
      data-tone={v.tone}
      data-fault={v.notes.length > 0}
      title={tooltip(state)}
      aria-label={spoken(state)}
      aria-haspopup="dialog"
      onClick={props.onOpen}
    >
      <span className="jp-gpu-share">GPU {v.share ?? format.UNKNOWN}</span>
      <span className="jp-gpu-bar" aria-hidden="true">
        <span style={{ width: `${percent}%` }} />
      </span>
      <span className="jp-gpu-memory">{format.memory(v.used, v.allowed)}</span>
      {v.simulated && <span className="jp-gpu-simulated">simulated</span>}
      {v.notes.length > 0 && (
        <span className="jp-gpu-mark" aria-hidden="true">
          !
        </span>
      )}
    </button>
  );
}

/** The panel behind the item: what is held and used, and the control to resize. */
export function SharePanel(props: {
  state: State;
  /** The share that is chosen at first, instead of the current one. */
  wanted?: string;
  onChoose: () => void;
  onResize: (share: string) => void;
}): React.JSX.Element {
  const { state } = props;
  const { phase } = state.resize;
  const [wanted, want] = React.useState(props.wanted ?? null);
  // After a refusal the choice stays, to be tried again when memory was freed.
  React.useEffect(() => {
    if (phase === 'done') {
      want(null);
    }
  }, [phase]);
  // The keyboard goes to the current share as soon as there is one to choose from.
  const panel = React.useRef<HTMLDivElement>(null);
  const choosable = state.session !== null;
  React.useEffect(() => {
    panel.current?.querySelector<HTMLInputElement>('input:checked')?.focus();
  }, [choosable]);
  const v = view(state);
  return (
    <div className="jp-gpu-panel" ref={panel}>
      <h2 className="jp-gpu-title">
        <span>{v.share === null ? 'GPU share' : `GPU ${v.share}`}</span>
        {v.simulated && <span className="jp-gpu-simulated">simulated</span>}
      </h2>
      <div className="jp-gpu-model">{v.model ?? 'unknown card'}</div>
      <div className="jp-gpu-meter" data-tone={v.tone}>
        <span className="jp-gpu-bar" aria-hidden="true">
          <span style={{ width: `${v.part === null ? 0 : v.part * 100}%` }} />
        </span>
        <span>{format.memory(v.used, v.allowed)} in use</span>
      </div>
      <dl className="jp-gpu-figures">
        <Figure name="Utilisation" value={format.reading(v.utilization, '%')} />
        <Figure name="Power" value={format.reading(v.power, 'W')} />
        <Figure name="Temperature" value={format.reading(v.temperature, '°C')} />
        <Figure name="Price" value={format.price(v.price, v.currency)} />
        <Figure name="Limits" value={v.grade ?? format.UNKNOWN} title={format.gradeMeaning(v.grade)} />
      </dl>
      {v.notes.map(note => (
        <p className="jp-gpu-note" key={note}>
          {note}
        </p>
      ))}
      {state.session && (
        <ResizeForm
          state={state}
          session={state.session}
          wanted={wanted}
          onWant={share => {
            if (phase !== 'running') {
              want(share);
              props.onChoose();
            }
          }}
          onResize={props.onResize}
        />
      )}
    </div>
  );
}

function Figure(props: { name: string; value: string; title?: string }): React.JSX.Element {
  return (
    <div title={props.title}>
      <dt>{props.name}</dt>
      <dd>{props.value}</dd>
    </div>
  );
}

function ResizeForm(props: {
  state: State;
  session: Session;
  wanted: string | null;
  onWant: (share: string) => void;
  onResize: (share: string) => void;
}): React.JSX.Element {
  const { session } = props;
  const { resize } = props.state;
  if (!session.resizable) {
    return (
      <p className="jp-gpu-note">
        This session holds whole cards; several cards are not resized while running.
      </p>
    );
  }
  const option = chosen(session.options, props.wanted);
  const running = resize.phase === 'running';
  const ready = option !== null && option.available && !option.current && !running;
  return (
    <form
      className="jp-gpu-form"
      aria-busy={running}
      onSubmit={event => {
        event.preventDefault();
        if (ready) {
          props.onResize(option.share);
        }
      }}
    >
      <fieldset>
        <legend>Resize to</legend>
        {session.options.map(item => (
          <Choice
            key={item.share}
            option={item}
            currency={session.currency}
            checked={item.share === option?.share}
            onWant={props.onWant}
          />
        ))}
      </fieldset>
      <p className="jp-gpu-consequence">{option ? consequence(session, option) : ' '}</p>
      {/* Not `disabled`, which would take the keyboard's focus out of the panel in mid-resize. */}
      <button
        type="submit"
        className="jp-mod-styled jp-mod-accept jp-gpu-submit"
        aria-disabled={!ready}
      >
        {running
          ? `Resizing to ${resize.share}…`
          : option && !option.current
            ? `Resize to ${option.share}`
            : 'Resize'}
      </button>
      <p className="jp-gpu-result" role="status" data-phase={resize.phase}>
        {resize.phase === 'done' || resize.phase === 'refused' ? resize.message : ''}
      </p>
    </form>
  );
}

function Choice(props: {
  option: Option;
  currency: string | null;
  checked: boolean;
  onWant: (share: string) => void;
}): React.JSX.Element {
  const { option } = props;
  const possible = option.available || option.current;
  const why = option.current ? 'your share now' : possible ? '' : (option.reason ?? 'not free');
  return (
    <label className="jp-gpu-choice" data-possible={possible} data-checked={props.checked}>
      <input
        type="radio"
        name="gpu-share"
        value={option.share}
        checked={props.checked}
        disabled={!possible}
        aria-label={
          `${format.spokenShare(option.share)}, ${format.gib(option.memory_bytes)} gibibytes, ` +
          `${format.price(option.price_per_hour, props.currency)}${why ? ', ' + why : ''}`
        }
        onChange={() => props.onWant(option.share)}
      />
      <span className="jp-gpu-choice-share">{option.share}</span>
      <Eighths share={option.share} />
      <span className="jp-gpu-choice-memory">{format.gib(option.memory_bytes)} GiB</span>
      <span className="jp-gpu-choice-price">
        {format.price(option.price_per_hour, props.currency)}
      </span>
      {why && <span className="jp-gpu-choice-why">{why}</span>}
    </label>
  );
}

/** A share as a row of eighths of its card. */
function Eighths(props: { share: string }): React.JSX.Element {
  const bottom = Number(props.share.split('/')[1] ?? '1');
  const filled = 8 / (Number.isFinite(bottom) && bottom > 0 ? bottom : 1);
  return (
    <span className="jp-gpu-eighths" aria-hidden="true">
      {Array.from({ length: 8 }, (_, index) => (
        <span key={index} data-held={index < filled} />
      ))}
    </span>
  );
}
