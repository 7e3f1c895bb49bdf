/** Somebody who waits, beside the queue. */

import * as React from 'react';

import * as format from '../../lab/src/format';
import type { Act } from './act';
import * as acts from './acts';
import type { Api } from './api';
import { useAsked, useFresh } from './asked';
import { Button, Fact } from './facts';
import type { Open } from './link';
import type { Waiting } from './types';
import { expected, moment, whose } from './words';

export function WaitingDetail(props: {
  api: Api;
  id: string;
  acts: number;
  onOpen: (open: Open | null) => void;
  setAct: (act: Act) => void;
}): React.JSX.Element {
  const { api, id } = props;
  const [asked, again] = useAsked<Waiting>(api, `/queue/${encodeURIComponent(id)}`, { at: `${props.acts}` });
  useFresh(again);
  if (asked.phase === 'failed') {
    return <p>{asked.status === 404 ? 'It does not wait any more, or you may not see it.' : asked.message}</p>;
  }
  const who = asked.value;
  if (!who) {
    return <p className="jp-gpu-quiet">Looking…</p>;
  }
  const placed = who.state === 'waiting' ? null : 'It has its share already.';
  return (
    <>
      {who.changed_by && (
        <p className="jp-gpu-note">
          Class or deadline set by {who.changed_by}: {who.changed_reason}
        </p>
      )}
      {who.parked && (
        <p className="jp-gpu-note">
          Parked since {moment(who.parked.since)}. {who.parked.reason}
        </p>
      )}
      <dl className="jp-gpu-facts">
        <Fact name="Who">
          <button type="button" className="jp-gpu-link" onClick={() => props.onOpen({ kind: 'user', name: who.user })}>
            {whose(who)}
          </button>
        </Fact>
        <Fact name="Place">{who.place ?? (placed ? 'started' : 'none at the moment')}</Fact>
        <Fact name="Why">{who.reason}</Fact>
        <Fact name="Share">{format.heldShare(who.share)}</Fact>
        <Fact name="Class">{who.kind}</Fact>
        <Fact name="Deadline">
          {who.deadline ? moment(who.deadline) : 'none'}
          {who.in_time === false && ', which is not kept'}
        </Fact>
        <Fact name="Waited">{format.duration(who.waited_seconds * 1000)}</Fact>
        <Fact name="Still">{expected(who.expected_low_seconds, who.expected_high_seconds, who.waited_seconds)}</Fact>
        <Fact name="id">
          <code>{who.id}</code>
        </Fact>
      </dl>
      <div className="gpa-buttons">
        <Button
          text="Class or deadline…"
          why={placed ?? (who.changeable ? null : 'Only administrators, and whom the policy allows it, say who goes first.')}
          onClick={() => props.setAct(acts.prioritise(api, who))}
        />
        {who.parked?.by && who.parked.back && (
          <Button
            text="Let it back…"
            why={placed}
            onClick={() => who.parked && props.setAct(acts.release(api, who.parked, who))}
          />
        )}
        <Button text="Out of the queue…" danger why={placed} onClick={() => props.setAct(acts.leave(api, who))} />
      </div>
    </>
  );
}
