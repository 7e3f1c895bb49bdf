/** Who waits. Where the service has no queue, that is said. */

import * as React from 'react';

import * as format from '../../lab/src/format';
import type { Api } from './api';
import { useAsked, useFresh } from './asked';
import type { Open } from './link';
import { Failed } from './spending';
import type { Waiting } from './types';
import { expected, moment, whose } from './words';

const SHOWN = 300;

export function Queue(props: { api: Api; acts: number; onOpen: (open: Open) => void }): React.JSX.Element {
  const [asked, again] = useAsked<{ queue: Waiting[]; length: number }>(props.api, '/queue', { at: `${props.acts}` });
  useFresh(again);
  const none = asked.phase === 'failed' && (asked.status === 404 || asked.status === 405);
  return (
    <section className="gpa-view" aria-label="Queue">
      <div className="gpa-page">
        {none ? (
          <>
            <h2>There is no queue here</h2>
            <p>A start gets its share at once, or is refused with the reason.</p>
          </>
        ) : asked.phase === 'failed' ? (
          <Failed message={asked.message} again={again} />
        ) : !asked.value ? (
          <p className="jp-gpu-quiet">Looking…</p>
        ) : !asked.value.queue.length ? (
          <>
            <h2>Nobody waits</h2>
            {asked.value.length > 0 && <p>{asked.value.length} others wait.</p>}
          </>
        ) : (
          <Table waiting={asked.value.queue} length={asked.value.length} onOpen={props.onOpen} />
        )}
      </div>
    </section>
  );
}

function Table(props: { waiting: Waiting[]; length: number; onOpen: (open: Open) => void }): React.JSX.Element {
  return (
    <div className="gpa-wide" tabIndex={0} role="region" aria-label="Who waits">
      <p>{props.length} in the queue.</p>
      <table className="gpa-table">
        <thead>
          <tr>
            <th scope="col">Place</th>
            <th scope="col">User / server</th>
            <th scope="col">Share</th>
            <th scope="col">Class</th>
            <th scope="col">Has waited</th>
            <th scope="col">Still</th>
            <th scope="col">Why</th>
          </tr>
        </thead>
        <tbody>
          {props.waiting.slice(0, SHOWN).map(each => (
            <tr key={each.id}>
              <td>{each.place ?? format.UNKNOWN}</td>
              <td>
                <button
                  type="button"
                  className="jp-gpu-link"
                  onClick={() => props.onOpen({ kind: 'waiting', name: each.id })}
                >
                  {whose(each)}
                </button>{' '}
                {each.parked && <span className="jp-gpu-chip">parked</span>}
              </td>
              <td>{format.heldShare(each.share)}</td>
              <td>{each.kind}</td>
              <td>{format.duration(each.waited_seconds * 1000)}</td>
              <td>{expected(each.expected_low_seconds, each.expected_high_seconds, each.waited_seconds)}</td>
              <td>
                {each.reason}
                {each.deadline && (
                  <span className="jp-gpu-quiet">
                    {' '}
                    Due {moment(each.deadline)}
                    {each.in_time === false && ', which is not kept'}
                  </span>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
