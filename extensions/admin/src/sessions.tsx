/** Every session that the viewer may see. */

import * as React from 'react';

import * as format from '../../lab/src/format';
import type { Open } from './link';
import { Search, VirtualList } from './list';
import { sessionRows } from './rows';
import type { Store } from './store';
import type { Card, Session } from './types';
import { stateOf, whose } from './words';

export function Sessions(props: {
  store: Store;
  narrow: boolean;
  open: Open | null;
  onOpen: (open: Open) => void;
}): React.JSX.Element {
  const { store, narrow, open } = props;
  const user = open?.kind === 'user' ? open.name : '';
  const [words, setWords] = React.useState(user);
  const people = store.people();
  const rows = React.useMemo(() => sessionRows(store, words), [people, words]);
  return (
    <section className="gpa-view" aria-label="Sessions">
      <div className="gpa-tools">
        <Search label="Find a user, server, session or model" value={words} onChange={setWords} />
        <p className="gpa-sum">
          {rows.length.toLocaleString()} session{rows.length === 1 ? '' : 's'}
        </p>
      </div>
      <VirtualList<string>
        label="Sessions"
        items={rows}
        id={id => id}
        height={() => (narrow ? 76 : 44)}
        measure={String(narrow)}
        current={open?.kind === 'session' ? open.name : null}
        onOpen={id => props.onOpen({ kind: 'session', name: id })}
        columns={
          <>
            <span role="columnheader">User / server</span>
            <span role="columnheader">Share</span>
            <span role="columnheader">Where</span>
            <span role="columnheader">Memory</span>
            <span role="columnheader">Price</span>
            <span role="columnheader">State</span>
          </>
        }
        row={id => {
          const session = store.sessions.get(id);
          const card = session?.cards[0] === undefined ? undefined : store.cards.get(session.cards[0]);
          return session ? <SessionRow session={session} card={card} /> : null;
        }}
        empty={
          words ? (
            <p>No session fits what you look for.</p>
          ) : (
            <>
              <h2>No session runs</h2>
              <p>{store.hello?.all ? 'Nobody has started a server.' : 'Start a server from the hub’s home page.'}</p>
            </>
          )
        }
      />
    </section>
  );
}

export function where(session: Session, card: Card | undefined): string {
  if (!session.cards.length) {
    return 'no card';
  }
  if (!card) {
    return 'a card that is not here now';
  }
  return session.cards.length > 1 ? `${card.node}, ${session.cards.length} cards` : `${card.node}, card ${card.index}`;
}

const SessionRow = React.memo(function SessionRow(props: {
  session: Session;
  card: Card | undefined;
}): React.JSX.Element {
  const { session } = props;
  return (
    <div className="gpa-session" role="presentation">
      <span role="gridcell" className="gpa-name">
        <span className="gpa-link">{whose(session)}</span>
      </span>
      <span role="gridcell" className="gpa-share">
        {session.cards.length ? format.heldShare(session.share) : 'No card'}
      </span>
      <span role="gridcell" className="gpa-where">
        {where(session, props.card)}
      </span>
      <span role="gridcell" className="gpa-figure gpa-memory" data-label="Memory">
        {session.cards.length ? format.memory(session.memory_used, session.memory) : '–'}
      </span>
      <span role="gridcell" className="gpa-figure gpa-price" data-label="Price">
        {format.price(session.price, session.currency)}
      </span>
      <span role="gridcell" className="gpa-state">
        {stateOf(session)}
      </span>
    </div>
  );
});
