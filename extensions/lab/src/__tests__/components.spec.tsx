import * as React from 'react';
import { renderToStaticMarkup } from 'react-dom/server';

import { SharePanel, StatusLine } from '../components';
import { INITIAL, State } from '../state';
import { GIB, session, telemetry } from './samples';

const nothing = (): void => undefined;

function state(changes: Partial<State> = {}): State {
  return { ...INITIAL, presence: 'session', session: session(), telemetry: telemetry(), ...changes };
}

function item(changes?: Partial<State>): string {
  return renderToStaticMarkup(<StatusLine state={state(changes)} onOpen={nothing} />);
}

function panel(changes?: Partial<State>, wanted?: string): string {
  return renderToStaticMarkup(
    <SharePanel state={state(changes)} wanted={wanted} onChoose={nothing} onResize={nothing} />
  );
}

describe('the status-bar item', () => {
  it('shows share, memory and that the card is simulated', () => {
    const html = item();
    expect(html).toContain('GPU 1/4');
    expect(html).toContain('12.3 / 20.0 GiB');
    expect(html).toContain('>simulated<');
    expect(html).toContain('data-tone="calm"');
    expect(html).toContain('width:61.5');
  });
  it('is not there without a share', () => {
    expect(item({ presence: 'none' })).toBe('');
    expect(item({ presence: 'unknown' })).toBe('');
  });
  it('changes its tone near the end and marks what is not known', () => {
    expect(item({ telemetry: telemetry({ memory_used_bytes: 18 * GIB }) })).toContain('"warn"');
    expect(item({ telemetry: telemetry({ memory_used_bytes: 20 * GIB }) })).toContain('"full"');
    expect(item({ fault: 'down' })).toContain('data-fault="true"');
  });
  it('does not call a real card simulated', () => {
    const real = { session: session({ simulated: false }), telemetry: telemetry({ simulated: false }) };
    expect(item(real)).not.toContain('>simulated<');
  });
});

describe('the panel', () => {
  it('offers the shares with memory, price and the reason of what is not free', () => {
    const html = panel();
    for (const text of ['10.0 GiB', '0.63 EUR/h', 'your share now', 'Others hold 2/8 of this card.']) {
      expect(html).toContain(text);
    }
    expect(html.match(/ disabled=""/g)).toHaveLength(1); // the taken share
    expect(html).toMatch(/<button type="submit"[^>]*aria-disabled="true"/); // nothing to do yet
  });
  it('lets a free share be taken', () => {
    expect(panel({}, '1/2')).toMatch(/<button type="submit"[^>]*>Resize to 1\/2</);
    expect(panel({}, '1/2')).toMatch(/<button type="submit"[^>]*aria-disabled="false"/);
  });
  it('is busy during a resize', () => {
    const html = panel({ resize: { phase: 'running', share: '1/2' } }, '1/2');
    expect(html).toContain('Resizing to 1/2…');
    expect(html).toContain('aria-busy="true"');
    expect(html).toMatch(/<button type="submit"[^>]*aria-disabled="true"/);
  });
  it('says a refusal where it is read aloud', () => {
    const message = 'Free 2.3 GiB first. Nothing was changed.';
    expect(panel({ resize: { phase: 'refused', message } })).toMatch(
      new RegExp(`role="status"[^>]*>${message}`)
    );
  });
  it('does not offer to resize several cards', () => {
    expect(panel({ session: session({ share: '2', resizable: false }) })).not.toContain('<form');
  });
});
