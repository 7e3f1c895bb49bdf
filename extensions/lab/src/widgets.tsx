/** The components as Lumino widgets. */

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
  }

  /** Open the panel above the item, or close it. */
  toggle(): void {
    if (this._popup && !this._popup.isDisposed) {
      this._popup.dispose();
      return;
    }
    const body = new SharePanelWidget(this.model);
    this._popup = showPopup({ body, anchor: this, align: 'right', hasDynamicSize: true });
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
    model.changed.connect(this.update, this);
  }

  protected render(): React.JSX.Element {
    return (
      <SharePanel
        state={this.model.state}
        wanted={this._wanted}
        onWant={share => {
          this._wanted = share;
          this.model.forget();
          this.update();
        }}
        onResize={share => {
          void this.model.resize(share).then(() => {
            this._wanted = null;
            this.update();
          });
        }}
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
    void this.renderPromise?.then(() =>
      this.node.querySelector<HTMLInputElement>('input:checked')?.focus()
    );
  }

  protected onBeforeDetach(msg: Message): void {
    window.clearInterval(this._timer);
    super.onBeforeDetach(msg);
  }

  private _wanted: string | null = null;
  private _timer = 0;
}
