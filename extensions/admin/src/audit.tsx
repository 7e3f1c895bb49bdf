/** Who changed what, or tried to. */

import * as React from 'react';

import type { Api } from './api';
import { useAsked } from './asked';
import { Search } from './list';
import { Failed } from './spending';
import type { AuditEntry } from './types';
import { moment } from './words';

interface Found {
  entries: AuditEntry[];
  next: number | null;
  problem: string | null;
}

export function Audit(props: { api: Api }): React.JSX.Element {
  const [user, setUser] = React.useState('');
  const [words, setWords] = React.useState('');
  const [before, setBefore] = React.useState<number | null>(null);
  const [asked, again] = useAsked<Found>(props.api, '/audit', {
    limit: '200',
    user: user.trim() || undefined,
    before: before?.toString()
  });
  const found = asked.value;
  const wanted = words.trim().toLowerCase();
  const entries = found?.entries.filter(entry => !wanted || JSON.stringify(entry).toLowerCase().includes(wanted)) ?? [];
  return (
    <section className="gpa-view" aria-label="Audit">
      <div className="gpa-tools">
        <input
          type="search"
          className="gpa-search"
          aria-label="By or about this user, exactly"
          placeholder="By or about this user, exactly"
          value={user}
          maxLength={255}
          onChange={event => {
            setUser(event.currentTarget.value);
            setBefore(null);
          }}
        />
        <Search label="Find among what is shown" value={words} onChange={setWords} />
        <button
          type="button"
          className="jp-gpu-button"
          onClick={() => {
            setBefore(null);
            again();
          }}
        >
          Newest
        </button>
        <button
          type="button"
          className="jp-gpu-button"
          aria-disabled={!found?.next}
          title={found && !found.next ? 'There are no older ones.' : undefined}
          onClick={() => found?.next && setBefore(found.next)}
        >
          Older
        </button>
      </div>
      <div className="gpa-page" aria-busy={asked.phase === 'loading'}>
        {found?.problem && (
          <p className="jp-gpu-note" data-tone="bad" role="alert">
            {found.problem}
          </p>
        )}
        {asked.phase === 'failed' ? (
          <Failed message={asked.message} again={again} />
        ) : !found ? (
          <p className="jp-gpu-quiet">Reading…</p>
        ) : !entries.length ? (
          <p>{wanted || user ? 'Nothing fits what you look for.' : 'Nobody has changed anything yet.'}</p>
        ) : (
          <div className="gpa-wide" tabIndex={0} role="region" aria-label="Audit rows">
            <table className="gpa-table">
              <thead>
                <tr>
                  <th scope="col">When</th>
                  <th scope="col">Who</th>
                  <th scope="col">What</th>
                  <th scope="col">About</th>
                  <th scope="col">Reason</th>
                  <th scope="col">Answer</th>
                </tr>
              </thead>
              <tbody>
                {entries.map(entry => (
                  <tr key={entry.id}>
                    <td>{moment(entry.at)}</td>
                    <td>
                      {entry.actor} <span className="jp-gpu-quiet">{entry.source}</span>
                    </td>
                    <td>
                      {entry.action} <code>{typeof entry.asked === 'string' ? entry.asked : JSON.stringify(entry.asked)}</code>
                    </td>
                    <td>
                      {entry.user} <code>{entry.session}</code>
                    </td>
                    <td>{entry.why}</td>
                    <td data-refused={entry.status >= 400}>
                      {entry.status} {entry.status >= 400 ? 'refused' : 'done'}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </div>
    </section>
  );
}
