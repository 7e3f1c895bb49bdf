/** What was used and charged, by whom. */

import * as React from 'react';

import * as format from '../../lab/src/format';
import type { Api } from './api';
import { useAsked } from './asked';
import type { Open } from './link';
import { Search } from './list';
import type { CostReport, CostSum } from './types';
import { carbon, energy, moment } from './words';

/** So many lines are drawn; more are found by the search. */
const SHOWN = 200;
const BY = { user: 'User', group: 'Group', project: 'Project', session: 'Session', model: 'Model' };

export const PERIODS = { month: 'This month', today: 'Today', week: 'The last 7 days', other: 'Another month' };
export type Period = keyof typeof PERIODS;

/** Where a period begins, in seconds since the epoch; left out where it is a month. By the viewer's midnight. */
export function begin(period: Period, now: number): string | undefined {
  const midnight = new Date(now);
  midnight.setHours(0, 0, 0, 0);
  if (period === 'week') {
    midnight.setDate(midnight.getDate() - 6);
  }
  return period === 'today' || period === 'week' ? String(Math.floor(midnight.getTime() / 1000)) : undefined;
}

export function Spending(props: { api: Api; admin: boolean; onOpen: (open: Open) => void }): React.JSX.Element {
  const [by, setBy] = React.useState<keyof typeof BY>('user');
  const [month, setMonth] = React.useState('');
  const [period, setPeriod] = React.useState<Period>('month');
  const [words, setWords] = React.useState('');
  const [asked, again] = useAsked<CostReport>(props.api, '/cost', {
    by,
    month: (period === 'other' && month) || undefined,
    start: begin(period, Date.now())
  });
  const report = asked.value;
  const sums = report?.sums.filter(sum => sum.name.toLowerCase().includes(words.trim().toLowerCase())) ?? [];
  return (
    <section className="gpa-view" aria-label="Spending">
      <div className="gpa-tools">
        <select
          className="gpa-select"
          aria-label="Summed by"
          value={by}
          onChange={event => setBy(event.currentTarget.value as keyof typeof BY)}
        >
          {Object.entries(BY)
            .filter(([name]) => props.admin || name !== 'group')
            .map(([name, title]) => (
              <option key={name} value={name}>
                By {title.toLowerCase()}
              </option>
            ))}
        </select>
        <select
          className="gpa-select"
          aria-label="Time"
          value={period}
          onChange={event => setPeriod(event.currentTarget.value as Period)}
        >
          {Object.entries(PERIODS).map(([name, title]) => (
            <option key={name} value={name}>
              {title}
            </option>
          ))}
        </select>
        {period === 'other' && (
          <input
            type="month"
            className="gpa-select"
            aria-label="Month; left empty, this one"
            value={month}
            onChange={event => setMonth(event.currentTarget.value)}
          />
        )}
        <Search label={`Find a ${BY[by].toLowerCase()}`} value={words} onChange={setWords} />
      </div>
      <div className="gpa-page" aria-busy={asked.phase === 'loading'}>
        {asked.phase === 'failed' ? (
          <Failed message={asked.message} again={again} />
        ) : !report ? (
          <p className="jp-gpu-quiet">Adding up…</p>
        ) : (
          <>
            <p>
              {moment(report.start)} to {moment(report.end)}: {report.charge} {report.currency} charged; what the nodes
              cost is {report.node_cost === null ? format.UNKNOWN_WORD : `${report.node_cost} ${report.currency}`}.
            </p>
            {sums.length || report.idle ? (
              <div className="gpa-wide" tabIndex={0} role="region" aria-label="Sums">
                <table className="gpa-table">
                  <thead>
                    <tr>
                      <th scope="col">{BY[by]}</th>
                      <th scope="col">Charge</th>
                      <th scope="col">Cost</th>
                      <th scope="col">Card-hours</th>
                      <th scope="col">Energy</th>
                      <th scope="col">CO₂</th>
                      <th scope="col">Sessions</th>
                    </tr>
                  </thead>
                  <tbody>
                    {sums.slice(0, SHOWN).map(sum => (
                      <Line key={sum.name} sum={sum} onOpen={by === 'user' ? props.onOpen : undefined} />
                    ))}
                    {report.idle && <Line sum={{ ...report.idle, name: 'idle, used by nobody' }} idle />}
                  </tbody>
                </table>
              </div>
            ) : (
              <p>Nothing was used in this time.</p>
            )}
            {sums.length > SHOWN && (
              <p className="jp-gpu-quiet">
                {SHOWN} of {sums.length} are shown. Search for the others.
              </p>
            )}
          </>
        )}
      </div>
    </section>
  );
}

function Line(props: { sum: CostSum; idle?: boolean; onOpen?: (open: Open) => void }): React.JSX.Element {
  const { sum, onOpen } = props;
  return (
    <tr data-idle={props.idle}>
      <th scope="row">
        {onOpen ? (
          <button type="button" className="jp-gpu-link" onClick={() => onOpen({ kind: 'user', name: sum.name })}>
            {sum.name}
          </button>
        ) : (
          sum.name || 'in no group'
        )}
      </th>
      <td>{props.idle ? format.UNKNOWN : sum.charge}</td>
      <td>{sum.cost ?? format.UNKNOWN_WORD}</td>
      <td>{(sum.eighth_seconds / 8 / 3600).toFixed(2)}</td>
      <td>{energy(sum.energy_mj)}</td>
      <td>{carbon(sum.co2_ug)}</td>
      <td>{props.idle ? '' : sum.sessions.toLocaleString()}</td>
    </tr>
  );
}

/** Something that could not be had, and another try. */
export function Failed(props: { message: string; again: () => void }): React.JSX.Element {
  return (
    <div role="alert">
      <p className="jp-gpu-note" data-tone="bad">
        {props.message}
      </p>
      <button type="button" className="jp-gpu-button" onClick={props.again}>
        Try again
      </button>
    </div>
  );
}
