/** Starts the page. Who is not signed in goes to the hub and comes back to the same place. */

import * as React from 'react';
import { createRoot } from 'react-dom/client';

import { Api } from './api';
import { App } from './app';
import { Store } from './store';

const KEPT = 'gpuspawner-page';
/** So many sign-ins one after the other lead nowhere. */
const MOST = 3;

interface Kept {
  hash: string;
  tries: number;
}

function kept(): Kept {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEPT) ?? '') as Partial<Kept>;
    return { hash: String(found.hash ?? ''), tries: Number(found.tries) || 0 };
  } catch {
    return { hash: '', tries: 0 };
  }
}

function theme(): void {
  // The hub's own pages remember it under this name.
  const chosen = localStorage.getItem('jupyterhub-bs-theme');
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset['theme'] = chosen === 'dark' || chosen === 'light' ? chosen : dark ? 'dark' : 'light';
}

function start(): void {
  theme();
  window.addEventListener('storage', theme);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', theme);
  const root = document.getElementById('panel') as HTMLElement;
  const { prefix = '/', hub = '/hub/', xsrf } = root.dataset;
  const before = kept();
  const signIn = (): void => {
    sessionStorage.setItem(KEPT, JSON.stringify({ hash: location.hash, tries: before.tries + 1 }));
    location.replace(`${prefix}login`);
  };
  if (!xsrf) {
    if (before.tries < MOST) {
      // Back from a sign-in the address has lost its end.
      history.replaceState(null, '', location.hash || before.hash || location.pathname);
      signIn();
      return;
    }
    sessionStorage.removeItem(KEPT);
    root.textContent = 'Signing in did not work. Load this page again, and look whether cookies are allowed.';
    return;
  }
  if (before.hash && !location.hash) {
    history.replaceState(null, '', before.hash);
  }
  before.tries = 0;
  sessionStorage.removeItem(KEPT);
  const store = new Store();
  const api = new Api(prefix, xsrf);
  const over = new AbortController();
  createRoot(root).render(<App store={store} api={api} hub={hub} signIn={signIn} />);
  void api.follow(store, over.signal);
}

start();
