/** The components as Lumino widgets. */

import { Dialog } from '@jupyterlab/apputils';
import { Popup, showPopup } from '@jupyterlab/statusbar';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { SharePanel, StatusLine } from './components';
import type { GPUModel } from './model';

/** While the panel is open its options are fetched again this often. */
const OPTIONS_MS = 3_000;

export class StatusItem extends ReactWidget {
  constructor(private readonly model: GPUModel) {
    super();
    this.addClass('jp-gpu-status');
    model.changed.connect(() => this.update());
    // The panel closes by Escape wherever the focus is: in it, or still on the item.
    this.node.addEventListener('keydown', event => {
      if (event.key === 'Escape') {
        this._popup?.dispose();
      }
    });
  }

  /** Open the panel above the item, or close it. */
  toggle(): void {
    if (this._popup && !this._popup.isDisposed) {
      this._popup.dispose();
      return;
    }
    const body = new SharePanelWidget(this.model);
    this._popup = showPopup({ body, anchor: this, hasDynamicSize: true });
    this._popup.node.setAttribute('role', 'dialog');
    this._popup.node.setAttribute('aria-label', 'GPU share');
    body.disposed.connect(() => this.node.querySelector('button')?.focus());
  }

  protected render(): React.JSX.Element {
    return <StatusLine state={this.model.state} onOpen={() => this.toggle()} />;
  }

  private _popup: Popup | null = null;
}

export class SharePanelWidget extends ReactWidget {
  constructor(private readonly model: GPUModel) {
    super();
    this.addClass('jp-gpu-popup');
    this.node.tabIndex = -1; // a click on its text keeps the focus inside, so that Escape closes it
    model.changed.connect(this.update, this);
  }

  protected render(): React.JSX.Element {
    return (
      <SharePanel
        state={this.model.state}
        onChoose={() => this.model.forget()}
        onResize={share => void this.model.resize(share)}
      />
    );
  }

  protected onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this.model.forget();
    void this.model.refresh();
    this._timer = window.setInterval(() => {
      if (!document.hidden && this.model.state.resize.phase !== 'running') {
        void this.model.refresh();
      }
    }, OPTIONS_MS);
  }

  protected onBeforeDetach(msg: Message): void {
    window.clearInterval(this._timer);
    super.onBeforeDetach(msg);
  }

  private _timer = 0;
}

/** A dialog in which Enter belongs to the form: it resizes, as in the popup, instead of closing. */
export class PanelDialog extends Dialog<unknown> {
  protected _evtKeydown(event: KeyboardEvent): void {
    if (event.key !== 'Enter') {
      super._evtKeydown(event);
    }
  }
}
