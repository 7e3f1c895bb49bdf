/** Something asked of the service, with its states. */

import * as React from 'react';

import type { Api, Refused } from './api';

export type Asked<T> =
  | { phase: 'loading'; value: T | null }
  | { phase: 'there'; value: T }
  | { phase: 'failed'; status: number; message: string; value: null };

/** Asks anew when the path or query changes, and by `again`. What was there is shown until then. */
export function useAsked<T>(
  api: Api,
  path: string | null,
  query: Record<string, string | undefined> = {}
): [Asked<T>, () => void] {
  const [asked, setAsked] = React.useState<Asked<T>>({ phase: 'loading', value: null });
  const [count, setCount] = React.useState(0);
  const key = JSON.stringify([path, query, count]);
  React.useEffect(() => {
    if (path === null) {
      return;
    }
    let over = false;
    setAsked(before => ({ phase: 'loading', value: before.value }));
    api.get<T>(path, query).then(
      value => !over && setAsked({ phase: 'there', value }),
      (error: Refused) => !over && setAsked({ phase: 'failed', status: error.status, message: error.message, value: null })
    );
    return () => {
      over = true;
    };
  }, [api, key]);
  return [asked, () => setCount(before => before + 1)];
}

/** So often it is asked for anew while it is looked at. */
const FRESH_MS = 5000;

/** Ask anew now and then, while the page is looked at. */
export function useFresh(again: () => void): void {
  const latest = React.useRef(again);
  latest.current = again;
  React.useEffect(() => {
    const timer = setInterval(() => !document.hidden && latest.current(), FRESH_MS);
    return () => clearInterval(timer);
  }, []);
}
