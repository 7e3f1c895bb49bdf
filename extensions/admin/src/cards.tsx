/** Every node and card, and who holds what of it. */

import * as React from 'react';

import { EighthsBar } from '../../lab/src/eighths';
import * as format from '../../lab/src/format';
import type { Open } from './link';
import { Search, VirtualList } from './list';
import { cardRows, Filter, FILTERS, Row } from './rows';
import type { Store } from './store';
import type { Card, Session } from './types';
import { cardName, cells, HEALTH, spoken, whose } from './words';

export function Cards(props: {
  store: Store;
  narrow: boolean;
  open: Open | null;
  onOpen: (open: Open) => void;
}): React.JSX.Element {
  const { store, narrow } = props;
  const [words, setWords] = React.useState('');
  const [filter, setFilter] = React.useState<Filter>('all');
  // Where nothing is sought, rows change only with the cards that there are.
  const plain = words === '' && filter === 'all';
  const nodes = store.nodes();
  const all = React.useMemo(() => cardRows(store, '', 'all'), [nodes, store.cards]);
  const rows = plain ? all : cardRows(store, words, filter);
  const { open } = props;
  return (
    <section className="gpa-view" aria-label="Cards">
      <div className="gpa-tools">
        <Search label="Find a node, card, model or user" value={words} onChange={setWords} />
        <select
          className="gpa-select"
          aria-label="Which cards"
          value={filter}
          onChange={event => setFilter(event.currentTarget.value as Filter)}
        >
          {Object.entries(FILTERS).map(([value, title]) => (
            <option key={value} value={value}>
              {title}
            </option>
          ))}
        </select>
        <Sum store={store} />
      </div>
      <VirtualList<Row>
        label="Cards"
        items={rows}
        id={rowId}
        height={row => (row.kind === 'node' ? 40 : narrow ? 96 : 56)}
        measure={String(narrow)}
        current={open && (open.kind === 'card' ? open.name : open.kind === 'node' ? `node ${open.name}` : null)}
        onOpen={row => props.onOpen(row.kind === 'node' ? { kind: 'node', name: row.name } : { kind: 'card', name: row.uuid })}
        columns={
          <>
            <span role="columnheader">Card</span>
            <span role="columnheader">Who holds what</span>
            <span role="columnheader">Memory</span>
            <span role="columnheader">Busy</span>
            <span role="columnheader">Heat</span>
            <span role="columnheader">Power</span>
            <span role="columnheader">Health</span>
          </>
        }
        row={row => {
          if (row.kind === 'node') {
            return <NodeRow name={row.name} cards={row.cards} />;
          }
          const card = store.cards.get(row.uuid);
          return card ? <CardRow card={card} holders={store.holders(row.uuid)} /> : null;
        }}
        empty={
          plain ? (
            <>
              <h2>No card here</h2>
              <p>
                {store.hello?.all
                  ? 'The service knows no card. On a machine, look whether the driver answers; on a cluster, whether the node agents run.'
                  : 'You hold no share of a card now. Start a server from the hub’s home page to get one.'}
              </p>
            </>
          ) : (
            <p>No card fits what you look for.</p>
          )
        }
      />
    </section>
  );
}

function rowId(row: Row): string {
  return row.kind === 'node' ? `node ${row.name}` : row.uuid;
}

/** What there is in all, in a line. */
function Sum(props: { store: Store }): React.JSX.Element {
  let held = 0;
  let free = 0;
  for (const card of props.store.cards.values()) {
    held += card.held;
    free += card.free;
  }
  const cards = props.store.cards.size;
  const sessions = props.store.sessions.size;
  return (
    <p className="gpa-sum">
      {cards.toLocaleString()} card{cards === 1 ? '' : 's'}, {sessions.toLocaleString()} session{sessions === 1 ? '' : 's'}
      {props.store.hello?.all ? `; ${held.toLocaleString()} eighths held, ${free.toLocaleString()} free` : ''}
    </p>
  );
}

const NodeRow = React.memo(function NodeRow(props: { name: string; cards: number }): React.JSX.Element {
  return (
    <div className="gpa-node" role="gridcell">
      <strong>{props.name}</strong>
      <span className="jp-gpu-quiet">
        {props.cards} card{props.cards === 1 ? '' : 's'}
      </span>
    </div>
  );
});

const CardRow = React.memo(function CardRow(props: { card: Card; holders: readonly Session[] }): React.JSX.Element {
  const { card, holders } = props;
  return (
    <div className="gpa-card" role="presentation" data-closed={card.cordon !== null}>
      <span role="gridcell" className="gpa-name">
        <span className="gpa-head">
          <span className="gpa-link">{cardName(card)}</span>
          {card.simulated && (
            <span className="jp-gpu-chip" title={format.SIMULATED_MEANING}>
              simulated
            </span>
          )}
        </span>
        <span className="gpa-model">{card.model}</span>
      </span>
      <span role="gridcell" className="gpa-who">
        <EighthsBar cells={cells(card, holders)} words={spoken(card, holders)} />
        <span className="gpa-holders" aria-hidden="true">
          {holders.length
            ? holders.map(session => `${whose(session)} ${session.eighths}/8`).join(' · ')
            : card.held
              ? 'held by others'
              : 'nobody'}
        </span>
      </span>
      <span role="gridcell" className="gpa-figure gpa-memory" data-label="Memory">
        {format.memory(card.memory_used, card.memory)}
      </span>
      <span role="gridcell" className="gpa-figure gpa-busy" data-label="Busy">
        {format.reading(card.utilization, '%')}
      </span>
      <span role="gridcell" className="gpa-figure gpa-heat" data-label="Heat">
        {format.reading(card.temperature, '°C')}
      </span>
      <span role="gridcell" className="gpa-figure gpa-power" data-label="Power">
        {format.reading(card.power, 'W')}
      </span>
      <span role="gridcell" className="gpa-state">
        {card.cordon ? (
          <span className="gpa-closed">{card.cordon.ends ? 'draining' : 'out of use'}</span>
        ) : (
          <span className="jp-gpu-health" data-state={card.health}>
            {HEALTH[card.health]}
          </span>
        )}
        <span className="gpa-model" title={format.gradeMeaning(card.grade)}>
          {card.grade}
        </span>
      </span>
    </div>
  );
});
