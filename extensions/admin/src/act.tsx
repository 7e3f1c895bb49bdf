/** An act with its reason, what became of it, and how it is undone. */

import * as React from 'react';

export interface Act {
  title: string;
  /** What it means, before it is done. */
  meaning: string;
  /** What the button says. */
  verb: string;
  /** Whether a reason has to be given. */
  reason: boolean;
  /** Something to choose, with its choices; what may not be chosen says why. */
  choice?: { label: string; name: string; choices: { value: string; text: string; why?: string | null }[]; first: string };
  /** A moment to set, ISO 8601; null: none. */
  moment?: { label: string; first: string | null };
  danger?: boolean;
  run: (reason: string, chosen: string, moment?: string | null) => Promise<Done>;
}

/** What was done, and how to take it back; null where it cannot be. */
export interface Done {
  message: string;
  undo: (() => Promise<Done>) | null;
}

export function ActForm(props: { act: Act; onDone: (done: Done) => void; onCancel: () => void }): React.JSX.Element {
  const { act } = props;
  const [reason, setReason] = React.useState('');
  const [chosen, choose] = React.useState(act.choice?.first ?? '');
  const [moment, setMoment] = React.useState(local(act.moment?.first ?? null));
  const [busy, setBusy] = React.useState(false);
  const [fault, setFault] = React.useState<string | null>(null);
  const id = React.useId();
  const first = React.useRef<HTMLElement>(null);
  React.useEffect(() => first.current?.focus(), []);
  const missing = act.reason && !reason.trim() ? 'Give a reason first: it goes into the audit.' : null;
  const submit = async (event: React.FormEvent): Promise<void> => {
    event.preventDefault();
    if (busy || missing) {
      setFault(missing);
      return;
    }
    setBusy(true);
    setFault(null);
    try {
      props.onDone(await act.run(reason.trim(), chosen, moment ? new Date(moment).toISOString() : null));
    } catch (error) {
      setFault(error instanceof Error ? error.message : String(error));
      setBusy(false);
    }
  };
  return (
    <form className="gpa-act" aria-labelledby={`${id}-title`} aria-busy={busy} onSubmit={event => void submit(event)}>
      <h3 id={`${id}-title`}>{act.title}</h3>
      <p>{act.meaning}</p>
      {act.choice && (
        <fieldset>
          <legend>{act.choice.label}</legend>
          {act.choice.choices.map((each, index) => (
            <label key={each.value} className="gpa-choice">
              <input
                ref={index === 0 ? (first as React.RefObject<HTMLInputElement>) : undefined}
                type="radio"
                name={act.choice?.name}
                value={each.value}
                checked={each.value === chosen}
                disabled={Boolean(each.why)}
                onChange={() => choose(each.value)}
              />
              <span>
                {each.text}
                {each.why && <span className="jp-gpu-quiet"> {each.why}</span>}
              </span>
            </label>
          ))}
        </fieldset>
      )}
      {act.moment && (
        <label className="gpa-reason">
          {act.moment.label}
          <input type="datetime-local" value={moment} onChange={event => setMoment(event.currentTarget.value)} />
        </label>
      )}
      {act.reason && (
        <label className="gpa-reason">
          Reason
          <input
            ref={act.choice ? undefined : (first as React.RefObject<HTMLInputElement>)}
            type="text"
            maxLength={200}
            value={reason}
            aria-describedby={`${id}-fault`}
            onChange={event => {
              setReason(event.currentTarget.value);
              setFault(null);
            }}
          />
        </label>
      )}
      <p id={`${id}-fault`} className="gpa-fault" role="alert">
        {fault}
      </p>
      <div className="gpa-buttons">
        <button type="submit" className="jp-gpu-button gpa-do" data-danger={act.danger} aria-disabled={busy || missing !== null}>
          {busy ? 'Asking…' : act.verb}
        </button>
        <button type="button" className="jp-gpu-button" onClick={props.onCancel}>
          Leave it
        </button>
      </div>
    </form>
  );
}

/** A moment as an input for local times has it: to the minute. */
export function local(time: string | null): string {
  if (time === null) {
    return '';
  }
  const at = new Date(time);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** What became of the last act, with its undo. */
export function Outcome(props: { done: Done; onDone: (done: Done) => void; onClose: () => void }): React.JSX.Element {
  const [busy, setBusy] = React.useState(false);
  const { undo } = props.done;
  const back = async (): Promise<void> => {
    if (!undo || busy) {
      return;
    }
    setBusy(true);
    try {
      props.onDone(await undo());
    } catch (error) {
      props.onDone({ message: `Not undone: ${error instanceof Error ? error.message : String(error)}`, undo: null });
    }
    setBusy(false);
  };
  return (
    <div className="gpa-outcome" role="status">
      <span>{props.done.message}</span>
      <span className="gpa-buttons">
        {undo && (
          <button type="button" className="jp-gpu-button" aria-disabled={busy} onClick={() => void back()}>
            Undo
          </button>
        )}
        <button type="button" className="jp-gpu-button" onClick={props.onClose}>
          Close
        </button>
      </span>
    </div>
  );
}
