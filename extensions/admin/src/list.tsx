/** A list of any length of which only what is on the screen is drawn. One stop for the keyboard; arrows move in it. */

import * as React from 'react';

import { offsets, rowAt } from './rows';

/** Pixels drawn above and below what is seen: a turn of the wheel. More is laid out with each jump. */
const BEYOND = 120;

export function VirtualList<T>(props: {
  label: string;
  items: readonly T[];
  id: (item: T) => string;
  height: (item: T) => number;
  /** Changes where heights do. */
  measure: string;
  columns: React.ReactNode;
  row: (item: T) => React.ReactNode;
  /** A row is open beside the list. */
  current: string | null;
  onOpen: (item: T) => void;
  empty: React.ReactNode;
}): React.JSX.Element {
  const { items, id } = props;
  const box = React.useRef<HTMLDivElement>(null);
  const [view, look] = React.useState({ top: 0, height: 900 });
  const [active, setActive] = React.useState<string | null>(null);
  const name = React.useId();
  const tops = React.useMemo(
    () => offsets(items.length, index => props.height(items[index] as T)),
    [items, props.measure]
  );
  React.useEffect(() => {
    const node = box.current;
    if (!node) {
      return;
    }
    const measure = (): void => look({ top: node.scrollTop, height: node.clientHeight });
    const sizes = new ResizeObserver(measure);
    sizes.observe(node);
    node.addEventListener('scroll', measure, { passive: true });
    return () => {
      sizes.disconnect();
      node.removeEventListener('scroll', measure);
    };
  }, []);
  const show = (index: number): void => {
    const node = box.current;
    if (node) {
      const [top, bottom] = [tops[index] as number, tops[index + 1] as number];
      if (top < node.scrollTop) {
        node.scrollTop = top;
      } else if (bottom > node.scrollTop + node.clientHeight) {
        node.scrollTop = bottom - node.clientHeight;
      }
    }
  };
  // What a link opens is brought into sight once it is there.
  const sought = React.useRef<string | null>(null);
  React.useEffect(() => {
    if (props.current !== null && sought.current !== props.current) {
      const index = items.findIndex(item => id(item) === props.current);
      if (index >= 0) {
        sought.current = props.current;
        setActive(props.current);
        show(index);
      }
    }
  }, [props.current, items]);

  const first = rowAt(tops, view.top - BEYOND);
  const last = Math.min(items.length - 1, rowAt(tops, view.top + view.height + BEYOND));
  const place = active === null ? -1 : items.findIndex(item => id(item) === active);
  const drawn = Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => first + index);
  // What has the keyboard is always there, however far it was scrolled away.
  if (place >= 0 && (place < first || place > last)) {
    drawn.push(place);
  }
  const onKeyDown = (event: React.KeyboardEvent): void => {
    const page = Math.max(1, Math.floor(view.height / 70));
    const steps: Record<string, number> = {
      ArrowDown: place + 1,
      ArrowUp: place < 0 ? 0 : place - 1,
      PageDown: place + page,
      PageUp: place - page,
      Home: 0,
      End: items.length - 1
    };
    const step = steps[event.key];
    if (step !== undefined && items.length) {
      event.preventDefault();
      const next = Math.min(items.length - 1, Math.max(0, step));
      setActive(id(items[next] as T));
      show(next);
    } else if ((event.key === 'Enter' || event.key === ' ') && place >= 0) {
      event.preventDefault();
      props.onOpen(items[place] as T);
    }
  };
  if (!items.length) {
    return <div className="gpa-empty">{props.empty}</div>;
  }
  return (
    <div className="gpa-list">
      <div
        ref={box}
        className="gpa-scroll"
        role="grid"
        aria-label={props.label}
        aria-rowcount={items.length + 1}
        tabIndex={0}
        aria-activedescendant={place >= 0 ? `${name}-${place}` : undefined}
        onKeyDown={onKeyDown}
      >
        <div role="row" aria-rowindex={1} className="gpa-columns">
          {props.columns}
        </div>
        <div role="rowgroup" className="gpa-rows" style={{ height: tops[items.length] }}>
          {drawn.map(index => {
            const item = items[index] as T;
            const key = id(item);
            return (
              <div
                key={key}
                id={`${name}-${index}`}
                role="row"
                aria-rowindex={index + 2}
                className="gpa-row"
                data-active={key === active}
                data-current={key === props.current}
                aria-selected={key === props.current}
                style={{ top: tops[index], height: (tops[index + 1] as number) - (tops[index] as number) }}
                onClick={() => {
                  setActive(key);
                  props.onOpen(item);
                }}
              >
                {props.row(item)}
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}

/** The search field above a list. */
export function Search(props: { label: string; value: string; onChange: (value: string) => void }): React.JSX.Element {
  return (
    <input
      type="search"
      className="gpa-search"
      aria-label={props.label}
      placeholder={props.label}
      value={props.value}
      maxLength={200}
      onChange={event => props.onChange(event.currentTarget.value)}
    />
  );
}
