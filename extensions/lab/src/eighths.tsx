/** A card as eight eighths: the bar that the panel in JupyterLab and the hub's page share. */

import * as React from 'react';

/** One eighth: what it is, whose by tone where several hold some, and words for who points at it. */
export interface Cell {
  part: string;
  tone?: number;
  title?: string;
}

export function EighthsBar(props: {
  cells: Cell[];
  /** The same in words. */
  words: string;
  live?: boolean;
  onPointerDown?: React.PointerEventHandler<HTMLDivElement>;
  onPointerMove?: React.PointerEventHandler<HTMLDivElement>;
}): React.JSX.Element {
  return (
    <div
      className="jp-gpu-eighths"
      role="img"
      aria-label={props.words}
      data-live={props.live ?? false}
      onPointerDown={props.onPointerDown}
      onPointerMove={props.onPointerMove}
    >
      {props.cells.map((cell, index) => (
        <span key={index} data-part={cell.part} data-tone={cell.tone} title={cell.title} />
      ))}
    </div>
  );
}
