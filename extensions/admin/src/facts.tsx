/** Parts of what is open beside a list. */

import * as React from 'react';

/** A button that when it can do nothing says why. */
export function Button(props: { text: string; why?: string | null; danger?: boolean; onClick: () => void }): React.JSX.Element {
  const id = React.useId();
  return (
    <span className="gpa-button">
      <button
        type="button"
        className="jp-gpu-button"
        data-danger={props.danger}
        aria-disabled={Boolean(props.why)}
        aria-describedby={props.why ? id : undefined}
        onClick={() => !props.why && props.onClick()}
      >
        {props.text}
      </button>
      {props.why && (
        <span id={id} className="jp-gpu-quiet">
          {props.why}
        </span>
      )}
    </span>
  );
}

/** A name and what it is. */
export function Fact(props: { name: string; children: React.ReactNode }): React.JSX.Element {
  return (
    <div>
      <dt>{props.name}</dt>
      <dd>{props.children}</dd>
    </div>
  );
}
