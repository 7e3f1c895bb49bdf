/** The page: its lists, what is open beside them, and how fresh all that is. */

import * as React from 'react';

import { Done, Outcome } from './act';
import type { Api } from './api';
import { Audit } from './audit';
import { Cards } from './cards';
import { Detail } from './detail';
import * as link from './link';
import { Queue } from './queue';
import { Sessions } from './sessions';
import { Spending } from './spending';
import type { Store } from './store';
import { clock } from './words';

const TITLES: Record<link.Tab, string> = {
  cards: 'Cards',
  sessions: 'Sessions',
  queue: 'Queue',
  spending: 'Spending',
  audit: 'Audit'
};
const OWN_TITLES: Partial<Record<link.Tab, string>> = { cards: 'Your cards', sessions: 'Your sessions', spending: 'Your costs' };
/** Below this width a row has two lines, and what is open covers the list. */
const NARROW = '(max-width: 760px)';

export function App(props: { store: Store; api: Api; hub: string; signIn: () => void }): React.JSX.Element {
  const { store, api } = props;
  const [, redraw] = React.useReducer((count: number) => count + 1, 0);
  React.useEffect(() => store.subscribe(redraw), [store]);
  const narrow = useMedia(NARROW);
  const [place, setPlace] = React.useState(() => link.read(location.hash));
  const [done, show] = React.useState<Done | null>(null);
  const [acts, count] = React.useReducer((before: number) => before + 1, 0);
  const setDone = (next: Done): void => {
    show(next);
    count();
  };
  React.useEffect(() => {
    const onHash = (): void => setPlace(link.read(location.hash));
    window.addEventListener('hashchange', onHash);
    return () => window.removeEventListener('hashchange', onHash);
  }, []);
  const go = (next: link.Place): void => {
    history.pushState(null, '', link.write(next));
    setPlace(next);
  };
  const { hello, connection } = store;
  const admin = hello?.admin ?? false;
  const tab = place.tab ?? (hello && !hello.all ? 'sessions' : 'cards');
  const tabs = link.TABS.filter(each => each !== 'audit' || admin);
  const onOpen = (open: link.Open | null): void => {
    go({ tab, open });
    if (!open) {
      document.querySelector<HTMLElement>('.gpa-scroll')?.focus({ preventScroll: true });
    }
  };
  const old = connection.phase === 'reconnecting' || connection.phase === 'signed-out' || connection.problem !== null;
  const around = { store, narrow, open: place.open, onOpen };
  return (
    <div className="gpa" data-old={old} data-detail={place.open !== null}>
      <header className="gpa-top">
        <h1>GPU cards</h1>
        <nav aria-label="Lists">
          {tabs.map(each => (
            <a
              key={each}
              href={link.write({ tab: each, open: null })}
              aria-current={each === tab ? 'page' : undefined}
              onClick={event => {
                event.preventDefault();
                go({ tab: each, open: null });
              }}
            >
              {(hello && !hello.all ? OWN_TITLES[each] : undefined) ?? TITLES[each]}
            </a>
          ))}
        </nav>
        <span className="gpa-who-am-i">
          {hello?.user ?? ''} <a href={`${props.hub}home`}>Hub</a>
        </span>
      </header>
      <Banner store={store} api={api} signIn={props.signIn} />
      {done && <Outcome done={done} onDone={setDone} onClose={() => show(null)} />}
      <div className="gpa-body">
        <main>
          {connection.phase === 'refused' ? (
            <div className="gpa-empty">
              <h2>You may not see this</h2>
              <p>{connection.message}</p>
            </div>
          ) : !store.complete && !store.cards.size && (tab === 'cards' || tab === 'sessions') ? (
            <Loading />
          ) : tab === 'cards' ? (
            <Cards {...around} />
          ) : tab === 'sessions' ? (
            <Sessions {...around} key={place.open?.kind === 'user' ? place.open.name : ''} />
          ) : tab === 'spending' ? (
            <Spending api={api} admin={admin} onOpen={onOpen} />
          ) : tab === 'queue' ? (
            <Queue api={api} acts={acts} onOpen={onOpen} />
          ) : (
            <Audit api={api} />
          )}
        </main>
        {place.open && (
          <Detail
            store={store}
            api={api}
            hub={props.hub}
            acts={acts}
            open={place.open}
            onOpen={onOpen}
            onDone={setDone}
          />
        )}
      </div>
    </div>
  );
}

/** How fresh what is shown is, where it is not fresh. */
function Banner(props: { store: Store; api: Api; signIn: () => void }): React.JSX.Element | null {
  const { connection, at, complete } = props.store;
  const [now, setNow] = React.useState(Date.now());
  const waits = connection.phase === 'reconnecting';
  React.useEffect(() => {
    if (waits) {
      const timer = setInterval(() => setNow(Date.now()), 1000);
      return () => clearInterval(timer);
    }
    return undefined;
  }, [waits]);
  const from = complete ? ` What you see is from ${clock(at)}.` : '';
  let text: React.ReactNode = null;
  let button: React.ReactNode = null;
  if (connection.phase === 'signed-out') {
    text = `You are signed out.${from}`;
    button = (
      <button type="button" className="jp-gpu-button" onClick={props.signIn}>
        Sign in
      </button>
    );
  } else if (waits) {
    const seconds = Math.max(0, Math.ceil(((connection.retry ?? now) - now) / 1000));
    text = `${connection.message}${from} ${seconds ? `Trying again in ${seconds} s.` : 'Trying again…'}`;
    button = (
      <button type="button" className="jp-gpu-button" onClick={() => props.api.tryNow()}>
        Try now
      </button>
    );
  } else if (connection.problem !== null) {
    text = `${connection.problem}${from}`;
  }
  return (
    <div role="status" className="gpa-banner" data-shown={text !== null}>
      {text && <span>{text}</span>}
      {button}
    </div>
  );
}

function Loading(): React.JSX.Element {
  return (
    <div className="gpa-loading" aria-busy="true">
      <p className="jp-gpu-quiet">Looking at the cards…</p>
      {Array.from({ length: 8 }, (_, index) => (
        <span key={index} aria-hidden="true" />
      ))}
    </div>
  );
}

function useMedia(query: string): boolean {
  const [matches, set] = React.useState(() => matchMedia(query).matches);
  React.useEffect(() => {
    const media = matchMedia(query);
    const onChange = (): void => set(media.matches);
    media.addEventListener('change', onChange);
    return () => media.removeEventListener('change', onChange);
  }, [query]);
  return matches;
}
