/** The share as a bar of eighths of its card, and the control to change it. */

import * as React from 'react';

import { EighthsBar } from './eighths';
import * as format from './format';
import { chosen, consequence, Eighths, eighthsOf, Held, shrinks, State, view } from './state';
import type { Option, Session } from './types';

/** How many eighths an option is. */
export function optionEighths(option: Option): number {
  const [top, bottom] = option.share.split('/').map(Number);
  return option.eighths ?? (8 * (top || 1)) / (bottom || 1);
}

/** The smallest option with at least so many eighths: where a click on the bar leads. */
export function optionAt(options: Option[], eighths: number): Option | null {
  const enough = options.filter(option => optionEighths(option) >= eighths);
  return enough.sort((a, b) => optionEighths(a) - optionEighths(b))[0] ?? null;
}

type Part = 'own' | 'gain' | 'loss' | 'others' | 'free' | 'unknown';

/** What each of the eight eighths is, with the chosen size laid over it. */
export function parts(known: Eighths | null, own: number, wanted: number): Part[] {
  const others = known?.others ?? 0;
  return Array.from({ length: 8 }, (_, index) => {
    const place = index + 1;
    if (place <= Math.min(own, wanted)) {
      return 'own';
    }
    if (place <= own) {
      return 'loss';
    }
    if (place <= wanted) {
      return 'gain';
    }
    if (known === null) {
      return 'unknown';
    }
    return place > 8 - others ? 'others' : 'free';
  });
}

/** The bar. A pointer may choose on it; the keyboard uses the choices below. */
export function CardBar(props: {
  session: Session;
  wanted: Option | null;
  onWant?: (eighths: number) => void;
}): React.JSX.Element {
  const { session, onWant } = props;
  const known = eighthsOf(session);
  const wanted = props.wanted ? optionEighths(props.wanted) : session.eighths;
  const pick = (event: React.PointerEvent<HTMLDivElement>): void => {
    if (!onWant || event.buttons !== 1) {
      return;
    }
    const box = event.currentTarget.getBoundingClientRect();
    const place = Math.ceil((8 * (event.clientX - box.left)) / box.width);
    onWant(Math.min(8, Math.max(1, place)));
  };
  const words = known
    ? `${known.own} of 8 eighths yours, ${known.others} held by others, ${known.free} free`
    : `${session.eighths} of 8 eighths yours; how many others hold is unknown`;
  return (
    <div>
      <EighthsBar
        cells={parts(known, session.eighths, wanted).map(part => ({ part }))}
        words={words}
        live={onWant !== undefined}
        onPointerDown={event => {
          event.currentTarget.setPointerCapture?.(event.pointerId);
          pick(event);
        }}
        onPointerMove={pick}
      />
      <div className="jp-gpu-legend" aria-hidden="true">
        <span data-part="own">{format.eighths(session.eighths)} yours</span>
        {known ? (
          <>
            {known.others > 0 && <span data-part="others">{format.eighths(known.others)} others</span>}
            <span data-part="free">{format.eighths(known.free)} free</span>
          </>
        ) : (
          <span data-part="unknown">the rest unknown</span>
        )}
      </div>
    </div>
  );
}

/** Choices, what the chosen one would change, and the button that does it. */
export function ResizeForm(props: {
  state: State;
  session: Session;
  wanted: string | null;
  holders: Held[] | null;
  onWant: (share: string) => void;
  onResize: (share: string) => void;
}): React.JSX.Element {
  const { session } = props;
  const { resize } = props.state;
  if (!session.resizable) {
    return (
      <p className="jp-gpu-note">
        {session.cards.length > 1
          ? 'This session holds whole cards; several cards are not resized while running.'
          : session.resize === 'restart'
            ? 'This share is a slice of a card, whose size changes by a new start: save your work, stop the server, and start it with another share.'
            : 'This session cannot be resized now.'}
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
      {option && !option.current && (
        <Change state={props.state} session={session} option={option} holders={props.holders} />
      )}
      {/* Not `disabled`, which would take the keyboard's focus out of the panel in mid-resize. */}
      <button type="submit" className="jp-mod-styled jp-mod-accept jp-gpu-submit" aria-disabled={!ready}>
        {running
          ? `Resizing to ${format.shownShare(resize.share)}…`
          : option && !option.current
            ? `Resize to ${format.shownShare(option.share)}`
            : 'Choose another size'}
      </button>
      {running && <div className="jp-gpu-progress" aria-hidden="true" />}
      <p className="jp-gpu-result" role="status" data-phase={resize.phase}>
        {resize.phase === 'done' || resize.phase === 'refused' ? resize.message : ''}
      </p>
    </form>
  );
}

/** What the chosen size would change, before anything is asked for. */
function Change(props: {
  state: State;
  session: Session;
  option: Option;
  holders: Held[] | null;
}): React.JSX.Element {
  const { session, option } = props;
  const change = consequence(session, option, view(props.state).used);
  return (
    <div className="jp-gpu-change" aria-live="polite">
      <dl>
        <div>
          <dt>Memory</dt>
          <dd>{change.memory}</dd>
        </div>
        <div>
          <dt>Price</dt>
          <dd>{change.price}</dd>
        </div>
      </dl>
      {shrinks(session, option) && <ToFree free={change.free} holders={props.holders} />}
      <p>{change.kernels}</p>
    </div>
  );
}

function ToFree(props: { free: number | null; holders: Held[] | null }): React.JSX.Element {
  if (props.free === null) {
    return <p>How much is in use is not known now; the card’s driver decides when you resize.</p>;
  }
  if (props.free === 0) {
    return <p>Nothing has to be freed first.</p>;
  }
  const largest = props.holders?.find(holder => holder.memory);
  return (
    <p className="jp-gpu-warning">
      <strong>{format.gib(props.free)} GiB must be freed first.</strong>
      {largest && ` ${largest.title} holds ${format.gib(largest.memory)} GiB.`} Kernels are asked to free
      their caches before it is tried.
    </p>
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
      <span className="jp-gpu-choice-share">{option.share === '1' ? 'whole' : option.share}</span>
      <span className="jp-gpu-choice-memory">{format.gib(option.memory_bytes)} GiB</span>
      <span className="jp-gpu-choice-price">{format.price(option.price_per_hour, props.currency)}</span>
      {why && <span className="jp-gpu-choice-why">{why}</span>}
    </label>
  );
}
