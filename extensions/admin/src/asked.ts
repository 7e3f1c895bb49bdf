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
