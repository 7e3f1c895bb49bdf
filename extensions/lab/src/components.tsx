/** What is drawn, from the state alone: no JupyterLab in here, so it can be tested anywhere. */

import * as React from 'react';

import type { Painter } from './charts';
import { Checkpoints, OnCheckpoint } from './checkpoints';
import * as format from './format';
import type { History } from './history';
import { HolderActions, Holders } from './holders';
import { CardBar, optionAt, ResizeForm } from './resize';
import { cardless, chosen, held, noticeText, spoken, State, tooltip, View, view } from './state';
import { CardNow, Memory } from './usage';

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
  const none = cardless(state);
  const percent = v.part === null ? 0 : v.part * 100;
  return (
    <button
      type="button"
      className="jp-gpu-item"
      data-tone={v.tone}
      data-fault={v.notes.length > 0}
      title={tooltip(state)}
      aria-label={spoken(state)}
      onClick={props.onOpen}
    >
      <span className="jp-gpu-share">{none ? 'No card' : format.heldShare(v.share ?? format.UNKNOWN)}</span>
      {!none && (
        <>
          <span className="jp-gpu-bar" aria-hidden="true">
            <span style={{ width: `${percent}%` }} />
          </span>
          <span className="jp-gpu-memory">{format.memory(v.used, v.allowed)}</span>
        </>
      )}
      {v.simulated && <span className="jp-gpu-chip">simulated</span>}
      {v.notes.length > 0 && (
        <span className="jp-gpu-mark" aria-hidden="true">
          !
        </span>
      )}
    </button>
  );
}

export interface PanelProps {
  state: State;
  /** Milliseconds since the epoch, for ages. */
  now: number;
  history: History;
  painter: Painter;
  /** The share that is chosen at first, instead of the current one. */
  wanted?: string;
  onChoose: () => void;
  onResize: (share: string) => void;
  onBurst: (burst: boolean) => void;
  onCheckpoint: OnCheckpoint;
  holders: HolderActions;
}

/** The side panel: what is held and used, by whom, and the controls. */
export function SharePanel(props: PanelProps): React.JSX.Element {
  const { state } = props;
  const { phase } = state.resize;
  const [wanted, want] = React.useState(props.wanted ?? null);
  // After a refusal the choice stays, to be tried again when memory was freed.
  React.useEffect(() => {
    if (phase === 'done') {
      want(null);
    }
  }, [phase]);
  if (state.presence !== 'session') {
    return (
      <div className="jp-gpu-panel">
        <p className="jp-gpu-quiet">
          {state.presence === 'none'
            ? 'This server was started without a GPU share. Stop it and start it again from the hub to choose one.'
            : (state.fault ?? 'Looking for this server’s GPU share…')}
        </p>
      </div>
    );
  }
  const v = view(state);
  if (cardless(state)) {
    return (
      <div className="jp-gpu-panel">
        <header>
          <h2 className="jp-gpu-title">No card</h2>
        </header>
        <Notes state={state} now={props.now} v={v} />
        <p className="jp-gpu-quiet">{format.NO_CARD_MEANING}</p>
        <Section title="Checkpoints">
          <Checkpoints state={state} now={props.now} onAsk={props.onCheckpoint} />
        </Section>
      </div>
    );
  }
  const { session } = state;
  const choose = (share: string): void => {
    if (phase !== 'running') {
      want(share);
      props.onChoose();
    }
  };
  const chooseAt = (eighths: number): void => {
    const option = session && optionAt(session.options, eighths);
    if (option && (option.available || option.current)) {
      choose(option.share);
    }
  };
  const sources = { history: props.history, painter: props.painter };
  return (
    <div className="jp-gpu-panel">
      <Title v={v} />
      <Notes state={state} now={props.now} v={v} />
      <section aria-label="Share">
        {session && session.cards.length === 1 && (
          <CardBar
            session={session}
            wanted={session.resizable ? chosen(session.options, wanted) : null}
            onWant={session.resizable ? chooseAt : undefined}
          />
        )}
        <Memory v={v} sources={sources} />
        {session && (
          <ResizeForm
            state={state}
            session={session}
            wanted={wanted}
            holders={held(state)}
            onWant={choose}
            onResize={props.onResize}
          />
        )}
        {typeof session?.burst === 'boolean' && (
          <Burst on={session.burst} busy={state.acting.includes('burst')} onBurst={props.onBurst} />
        )}
      </section>
      <Section title="Who holds the memory">
        <Holders state={state} actions={props.holders} />
      </Section>
      <Section title={session && session.cards.length > 1 ? 'The cards' : 'The whole card'}>
        <CardNow state={state} v={v} sources={sources} />
        <Facts state={state} v={v} />
      </Section>
      <Section title="Checkpoints">
        <Checkpoints state={state} now={props.now} onAsk={props.onCheckpoint} />
      </Section>
    </div>
  );
}

function Section(props: { title: string; children: React.ReactNode }): React.JSX.Element {
  const id = React.useId();
  return (
    <section aria-labelledby={id}>
      <h3 id={id}>{props.title}</h3>
      {props.children}
    </section>
  );
}

function Title(props: { v: View }): React.JSX.Element {
  const { v } = props;
  return (
    <header>
      <h2 className="jp-gpu-title">
        <span>{v.share === null ? 'GPU share' : format.heldShare(v.share)}</span>
        {v.simulated && (
          <span className="jp-gpu-chip" title={format.SIMULATED_MEANING}>
            simulated
          </span>
        )}
      </h2>
      <div className="jp-gpu-model">
        {v.model ?? 'unknown card'} · <span className="jp-gpu-price">{format.price(v.price, v.currency)}</span>
      </div>
    </header>
  );
}

/** What is wrong or about to happen, and what became of the last request. */
function Notes(props: { state: State; now: number; v: View }): React.JSX.Element {
  const { state, v } = props;
  const notices = state.session?.notices ?? [];
  return (
    <div role="status">
      {notices.map(notice => (
        <p className="jp-gpu-note" key={notice.code}>
          {noticeText(notice, props.now)}
        </p>
      ))}
      {v.notes.map(note => (
        <p className="jp-gpu-note" key={note}>
          {note} {state.stale || state.fault ? 'Trying again…' : ''}
        </p>
      ))}
      {state.outcome && (
        <p className="jp-gpu-note" data-tone={state.outcome.ok ? 'good' : 'bad'}>
          {state.outcome.message}
        </p>
      )}
    </div>
  );
}

function Burst(props: { on: boolean; busy: boolean; onBurst: (burst: boolean) => void }): React.JSX.Element {
  return (
    <label className="jp-gpu-burst">
      <input
        type="checkbox"
        checked={props.on}
        aria-disabled={props.busy}
        onChange={event => !props.busy && props.onBurst(event.currentTarget.checked)}
      />
      <span>
        Burst
        <span className="jp-gpu-quiet"> Use compute of the card that others leave idle.</span>
      </span>
    </label>
  );
}

const HEALTH = {
  ok: 'good',
  warning: 'warning',
  failed: 'failed',
  unknown: format.UNKNOWN_WORD
};

/** Health and enforcement, in words. */
function Facts(props: { state: State; v: View }): React.JSX.Element {
  const cards = props.state.session?.cards ?? [];
  return (
    <dl className="jp-gpu-facts">
      {cards.map(card => {
        const health = card.health ?? { state: 'unknown' as const, reason: null };
        return (
          <div key={card.uuid}>
            <dt>{cards.length > 1 ? `Health of card ${card.index}` : 'Health'}</dt>
            <dd>
              <span className="jp-gpu-health" data-state={health.state}>
                {HEALTH[health.state] ?? format.UNKNOWN_WORD}
              </span>
              {health.reason && <span className="jp-gpu-quiet"> {health.reason}</span>}
            </dd>
          </div>
        );
      })}
      <div>
        <dt>Limits</dt>
        <dd>{format.gradeMeaning(props.v.grade)}</dd>
      </div>
    </dl>
  );
}
