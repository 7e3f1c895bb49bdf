/** What is open beside the list: a card, a node, a session or a user, with what can be done about it. */

import * as React from 'react';

import { EighthsBar } from '../../lab/src/eighths';
import * as format from '../../lab/src/format';
import { Act, ActForm, Done } from './act';
import * as acts from './acts';
import type { Api } from './api';
import { useAsked, useFresh } from './asked';
import { Button, Fact } from './facts';
import type { Open } from './link';
import { where } from './sessions';
import type { Store } from './store';
import type { Card, CardPlace, CostReport, FullSession, Parking, Session } from './types';
import { WaitingDetail } from './waiting';
import { cardName, cells, held, HEALTH, moment, sentence, spoken, stateOf, whose } from './words';

interface Around {
  store: Store;
  api: Api;
  hub: string;
  /** How many acts there were: after one, what was asked for is asked for anew. */
  acts: number;
  onOpen: (open: Open | null) => void;
  onDone: (done: Done) => void;
}

export function Detail(props: Around & { open: Open }): React.JSX.Element {
  const { store, open } = props;
  const [act, setAct] = React.useState<Act | null>(null);
  const heading = React.useRef<HTMLHeadingElement>(null);
  const key = `${open.kind} ${open.name}`;
  React.useEffect(() => {
    setAct(null);
    heading.current?.focus({ preventScroll: true });
  }, [key]);
  const parts = content(props, setAct);
  return (
    <aside
      className="gpa-detail"
      aria-label="Details"
      onKeyDown={event => event.key === 'Escape' && (act ? setAct(null) : props.onOpen(null))}
    >
      <header>
        <h2 ref={heading} tabIndex={-1}>
          {parts.title}
        </h2>
        <button type="button" className="jp-gpu-button" onClick={() => props.onOpen(null)}>
          Close
        </button>
      </header>
      {act ? (
        <ActForm
          act={act}
          onCancel={() => setAct(null)}
          onDone={done => {
            setAct(null);
            props.onDone(done);
          }}
        />
      ) : null}
      {store.complete || parts.found ? parts.body : <p className="jp-gpu-quiet">Looking…</p>}
    </aside>
  );
}

function content(
  props: Around & { open: Open },
  setAct: (act: Act) => void
): { title: string; found: boolean; body: React.JSX.Element } {
  const { store, open } = props;
  if (open.kind === 'user') {
    return { title: open.name, found: true, body: <User {...props} name={open.name} /> };
  }
  if (open.kind === 'waiting') {
    const body = <WaitingDetail key={open.name} {...props} id={open.name} setAct={setAct} />;
    return { title: 'In the queue', found: true, body };
  }
  if (open.kind === 'node') {
    const cards = store.nodes().find(node => node.name === open.name)?.cards ?? [];
    const body = cards.length ? (
      <Node {...props} name={open.name} uuids={cards} setAct={setAct} />
    ) : (
      <p>There is no such node now.</p>
    );
    return { title: open.name, found: cards.length > 0, body };
  }
  if (open.kind === 'card') {
    const card = store.cards.get(open.name);
    const body = card ? (
      <CardDetail {...props} card={card} setAct={setAct} />
    ) : (
      <p>There is no such card now, or you may not see it.</p>
    );
    return { title: card ? `${cardName(card)} of ${card.node}` : 'Card', found: Boolean(card), body };
  }
  const session = store.sessions.get(open.name);
  const body = session ? (
    <SessionDetail {...props} session={session} setAct={setAct} />
  ) : (
    <p>This session has ended, or you may not see it.</p>
  );
  return { title: session ? whose(session) : 'Session', found: Boolean(session), body };
}

function CardDetail(props: Around & { card: Card; setAct: (act: Act) => void }): React.JSX.Element {
  const { card, store } = props;
  const holders = store.holders(card.uuid);
  const known = holders.reduce((sum, session) => sum + session.eighths, 0);
  const target = { kind: 'card', name: card.uuid } as const;
  const title = `${cardName(card)} of ${card.node}`;
  return (
    <>
      <p className="jp-gpu-model">
        {card.name}{' '}
        {card.simulated && (
          <span className="jp-gpu-chip" title={format.SIMULATED_MEANING}>
            simulated
          </span>
        )}
      </p>
      <EighthsBar cells={cells(card, holders)} words={spoken(card, holders)} />
      <table className="gpa-table">
        <caption>Who holds what</caption>
        <thead>
          <tr>
            <th scope="col">Session</th>
            <th scope="col">Share</th>
            <th scope="col">Memory</th>
          </tr>
        </thead>
        <tbody>
          {holders.map((session, index) => (
            <tr key={session.id}>
              <td>
                <span className="gpa-swatch" data-tone={index % 4} aria-hidden="true" />
                <button
                  type="button"
                  className="jp-gpu-link"
                  onClick={() => props.onOpen({ kind: 'session', name: session.id })}
                >
                  {whose(session)}
                </button>
              </td>
              <td>{held(session)}</td>
              <td>{format.memory(session.memory_used, session.memory)}</td>
            </tr>
          ))}
          {card.held > known && (
            <tr>
              <td>others, or sessions that are ending</td>
              <td>{card.held - known}/8</td>
              <td>{format.UNKNOWN}</td>
            </tr>
          )}
          {card.held < 8 && (
            <tr>
              <td>nobody</td>
              <td>{8 - Math.max(card.held, known)}/8</td>
              <td />
            </tr>
          )}
        </tbody>
      </table>
      {store.hello?.admin && (
        <Closing {...props} card={card} target={target} title={title} sessions={holders.length} setAct={props.setAct} />
      )}
      <dl className="jp-gpu-facts">
        <Fact name="Memory">{format.memory(card.memory_used, card.memory)}</Fact>
        <Fact name="Busy">{format.reading(card.utilization, '%')}</Fact>
        <Fact name="Heat">{format.reading(card.temperature, '°C')}</Fact>
        <Fact name="Power">{format.reading(card.power, 'W')}</Fact>
        <Fact name="Health">
          <span className="jp-gpu-health" data-state={card.health}>
            {HEALTH[card.health]}
          </span>
          {card.health_reason && <span className="jp-gpu-quiet"> {card.health_reason}</span>}
        </Fact>
        <Fact name="Limits">{format.gradeMeaning(card.grade)}</Fact>
        <Fact name="uuid">
          <code>{card.uuid}</code>
        </Fact>
      </dl>
    </>
  );
}

/** Whether a card takes nothing new, and the acts about that. */
function Closing(props: {
  api: Api;
  card: Card;
  target: { kind: 'card' | 'node'; name: string };
  title: string;
  sessions: number;
  setAct: (act: Act) => void;
}): React.JSX.Element {
  const { api, target, title, setAct } = props;
  const cordon = props.card.cordon;
  const ofNode = cordon?.kind === 'node' && target.kind === 'card' ? 'Its whole node is out of use: open the node.' : null;
  return (
    <div className="gpa-closing">
      {cordon && (
        <p className="jp-gpu-note">
          Out of use since {moment(cordon.since)}, by {cordon.by}: {sentence(cordon.reason)}
          {cordon.ends && ` Its sessions end ${format.due(cordon.ends, Date.now()) ?? 'soon'}.`}
        </p>
      )}
      <div className="gpa-buttons">
        {cordon ? (
          <Button text="Back into use…" why={ofNode} onClick={() => setAct(acts.lift(api, target, title, cordon))} />
        ) : (
          <Button text="Out of use…" onClick={() => setAct(acts.cordon(api, target, title))} />
        )}
        <Button
          text="Drain…"
          danger
          why={ofNode ?? (props.sessions === 0 ? 'Nobody holds anything here.' : cordon?.ends ? 'It is draining.' : null)}
          onClick={() => setAct(acts.drain(api, target, title, props.sessions, cordon))}
        />
      </div>
    </div>
  );
}

function Node(props: Around & { name: string; uuids: string[]; setAct: (act: Act) => void }): React.JSX.Element {
  const { store } = props;
  const cards = props.uuids.map(uuid => store.cards.get(uuid)).filter((card): card is Card => card !== undefined);
  const sessions = new Set(props.uuids.flatMap(uuid => store.holders(uuid).map(session => session.id)));
  const whole = cards.find(card => card.cordon?.kind === 'node') ?? cards.find(card => card.cordon === null) ?? cards[0];
  const card = whole && whole.cordon?.kind === 'card' ? { ...whole, cordon: null } : whole;
  return (
    <>
      <ul className="gpa-bars">
        {cards.map(each => (
          <li key={each.uuid}>
            <button
              type="button"
              className="jp-gpu-link"
              onClick={() => props.onOpen({ kind: 'card', name: each.uuid })}
            >
              {cardName(each)}
            </button>
            <EighthsBar cells={cells(each, store.holders(each.uuid))} words={spoken(each, store.holders(each.uuid))} />
          </li>
        ))}
      </ul>
      {store.hello?.admin && card && (
        <Closing
          {...props}
          card={card}
          target={{ kind: 'node', name: props.name }}
          title={props.name}
          sessions={sessions.size}
          setAct={props.setAct}
        />
      )}
    </>
  );
}

function SessionDetail(props: Around & { session: Session; setAct: (act: Act) => void }): React.JSX.Element {
  const { session, store, api } = props;
  const admin = store.hello?.admin ?? false;
  const card = session.cards[0] === undefined ? undefined : store.cards.get(session.cards[0]);
  const path = `/sessions/${encodeURIComponent(session.id)}`;
  const at = `${session.share} ${session.state} ${session.parking} ${props.acts} ${card?.free} ${card?.cordon?.since}`;
  const [asked, again] = useAsked<FullSession>(api, path, { at });
  useFresh(again);
  const live = session.state === 'running' || session.state === 'starting';
  const full = asked.value;
  const fixed = !live
    ? 'It is ending.'
    : asked.phase === 'failed'
      ? asked.message
      : full && !full.resizable
        ? session.cards.length > 1
          ? 'Several cards are not resized while they run.'
          : 'It has no share that can be resized.'
        : full
          ? null
          : 'Looking…';
  return (
    <>
      {full?.notices.map(notice => (
        <p key={notice.code} className="jp-gpu-note">
          {notice.message}
        </p>
      ))}
      {full?.parking && <Missed parking={full.parking} />}
      <dl className="jp-gpu-facts">
        <Fact name="Share">{session.cards.length ? format.heldShare(session.share) : 'No card'}</Fact>
        <Fact name="Where">
          {card ? (
            <button
              type="button"
              className="jp-gpu-link"
              onClick={() => props.onOpen({ kind: 'card', name: card.uuid })}
            >
              {where(session, card)}
            </button>
          ) : (
            where(session, card)
          )}
        </Fact>
        <Fact name="Memory">
          {session.cards.length ? format.memory(session.memory_used, session.memory) : format.UNKNOWN}
        </Fact>
        <Fact name="Price">{format.price(session.price, session.currency)}</Fact>
        <Fact name="State">
          {stateOf(session)}, started {format.ago(session.created, Date.now())}
        </Fact>
        <Fact name="User">
          <button
            type="button"
            className="jp-gpu-link"
            onClick={() => props.onOpen({ kind: 'user', name: session.user })}
          >
            {session.user}
          </button>
        </Fact>
        <Fact name="id">
          <code>{session.id}</code>
        </Fact>
      </dl>
      <div className="gpa-buttons">
        <Button
          text="Resize…"
          why={fixed}
          onClick={() => full && props.setAct(acts.resize(api, session, full.options, admin))}
        />
        {admin && full && <Parks {...props} full={full} path={path} at={at} />}
        {admin ? (
          <Button
            text="End…"
            danger
            why={live ? null : 'It is ending.'}
            onClick={() => props.setAct(acts.end(api, session))}
          />
        ) : (
          <a className="jp-gpu-button" href={`${props.hub}home`}>
            Stop it on the hub’s page
          </a>
        )}
      </div>
    </>
  );
}

/** That it was to be parked, and was not. */
function Missed(props: { parking: Parking }): React.JSX.Element | null {
  const { state, since, said } = props.parking;
  if (state !== 'failed' && state !== 'silent') {
    return null;
  }
  return (
    <p className="jp-gpu-note">
      Asked to save {moment(since)}, it {state === 'failed' ? `could not (${said})` : 'did not say in time that it had'}
      , and runs on.
    </p>
  );
}

/** Parking and moving, and taking that back. */
function Parks(
  props: Around & { session: Session; full: FullSession; path: string; at: string; setAct: (act: Act) => void }
): React.JSX.Element {
  const { api, session, full, setAct } = props;
  const can = full.park_reason === null;
  const [asked] = useAsked<{ places: CardPlace[] }>(api, can ? `${props.path}/places` : null, { at: props.at });
  const places = asked.value?.places;
  const nowhere = places && !places.some(each => each.reason === null) ? 'No other card has a place for it.' : null;
  const byHand = full.parking?.by ? full.parking : null;
  return (
    <>
      {byHand && (byHand.state === 'noticed' || byHand.state === 'saved') ? (
        <Button text="Take back…" onClick={() => setAct(acts.release(api, byHand, session))} />
      ) : (
        <Button text="Park…" why={full.park_reason} onClick={() => setAct(acts.park(api, session))} />
      )}
      {can && (
        <Button
          text="Move…"
          why={asked.phase === 'failed' ? asked.message : (nowhere ?? (places ? null : 'Looking…'))}
          onClick={() => places && setAct(acts.move(api, session, places))}
        />
      )}
    </>
  );
}

function User(props: Around & { name: string }): React.JSX.Element {
  const { store, name, api } = props;
  const theirs = store.people().filter(id => store.sessions.get(id)?.user === name);
  const [known] = useAsked<{ groups: string[]; rights: string[]; sessions: number | null; restricted: boolean }>(
    api,
    `/policy/users/${encodeURIComponent(name)}`
  );
  const [cost] = useAsked<CostReport>(api, '/cost', { by: 'user' });
  const sum = cost.value?.sums.find(each => each.name === name);
  return (
    <>
      <dl className="jp-gpu-facts">
        <Fact name="Groups">
          {known.phase === 'failed' ? known.message : (known.value?.groups.join(', ') || (known.value ? 'none' : '…'))}
        </Fact>
        <Fact name="At once">
          {known.value ? (known.value.sessions === null ? 'no limit' : `${known.value.sessions} sessions`) : '…'}
        </Fact>
        <Fact name="This month">
          {cost.phase === 'failed'
            ? cost.message
            : cost.value
              ? `${sum?.charge ?? '0.00'} ${cost.value.currency} charged`
              : '…'}
        </Fact>
      </dl>
      <h3>Sessions now</h3>
      {theirs.length ? (
        <ul className="gpa-plain">
          {theirs.map(id => {
            const session = store.sessions.get(id) as Session;
            return (
              <li key={id}>
                <button type="button" className="jp-gpu-link" onClick={() => props.onOpen({ kind: 'session', name: id })}>
                  {session.server || 'default server'}
                </button>{' '}
                {session.cards.length ? format.heldShare(session.share) : 'No card'}
              </li>
            );
          })}
        </ul>
      ) : (
        <p className="jp-gpu-quiet">none</p>
      )}
    </>
  );
}
