/** The components as Lumino widgets. They look at the model for as long as they can be seen. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import { LabIcon, ReactWidget } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { Painter } from './charts';
import { SharePanel, StatusLine } from './components';
import type { GPUModel } from './model';
import type { Held } from './state';
import type { Checkpoint, CheckpointAction, Run } from './types';

/** A chip, a quarter of it filled. */
export const gpuIcon = new LabIcon({
  name: 'gpuspawner:gpu',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24"><g class="jp-icon3" fill="#616161">
<path d="M7 4h10a3 3 0 0 1 3 3v10a3 3 0 0 1-3 3H7a3 3 0 0 1-3-3V7a3 3 0 0 1 3-3zm0 2a1 1 0 0 0-1 1v10a1 1 0 0 0 1 1h10a1 1 0 0 0 1-1V7a1 1 0 0 0-1-1z"/>
<path d="M8 8h3.5v8H8zM8 1h2v3H8zm6 0h2v3h-2zM8 20h2v3H8zm6 0h2v3h-2zM1 8h3v2H1zm0 6h3v2H1zm19-6h3v2h-3zm0 6h3v2h-3z"/></g></svg>`
});

/** Looks at the model while it is visible. */
abstract class LookingWidget extends ReactWidget {
  constructor(
    protected readonly model: GPUModel,
    private readonly detail: boolean
  ) {
    super();
    model.changed.connect(this.onChange, this);
  }

  dispose(): void {
    this.look(false);
    super.dispose();
  }

  protected onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this.look(this.isVisible);
  }

  protected onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this.look(this.isVisible);
  }

  protected onBeforeHide(msg: Message): void {
    super.onBeforeHide(msg);
    this.look(false);
  }

  protected onBeforeDetach(msg: Message): void {
    super.onBeforeDetach(msg);
    this.look(false);
  }

  /** Begin or end to look. */
  protected look(visible: boolean): void {
    if (visible && !this._look) {
      this._look = this.model.look(this.detail);
      this.update();
    } else if (!visible && this._look) {
      this._look.dispose();
      this._look = null;
    }
  }

  protected onChange(): void {
    // What nobody sees is not drawn; being shown draws it.
    if (this._look) {
      this.update();
    }
  }

  private _look: IDisposable | null = null;
}

export class StatusItem extends LookingWidget {
  constructor(
    model: GPUModel,
    private readonly onOpen: () => void
  ) {
    super(model, false);
    this.addClass('jp-gpu-status');
  }

  protected render(): React.JSX.Element {
    return <StatusLine state={this.model.state} onOpen={this.onOpen} />;
  }
}

export class GPUPanel extends LookingWidget {
  constructor(
    model: GPUModel,
    private readonly open: (path: string) => void
  ) {
    super(model, true);
    this.id = 'gpuspawner-panel';
    this.addClass('jp-gpu-side');
    this.title.icon = gpuIcon;
    this.title.caption = 'GPU share';
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'GPU share');
    this.node.tabIndex = -1;
    document.addEventListener('visibilitychange', this.onVisibility);
  }

  dispose(): void {
    document.removeEventListener('visibilitychange', this.onVisibility);
    super.dispose();
  }

  /** Put the keyboard on the choice of sizes, as soon as it is drawn. */
  focusChoice(): void {
    this._focusChoice = true;
    this.update();
    void this.renderPromise?.then(() => this.tryFocus());
  }

  protected look(visible: boolean): void {
    super.look(visible);
    this._painter.visible = visible && !document.hidden;
    if (visible) {
      this.model.forget();
    }
  }

  protected onActivateRequest(msg: Message): void {
    super.onActivateRequest(msg);
    this.node.focus();
  }

  protected onChange(): void {
    super.onChange();
    if (this._focusChoice) {
      void this.renderPromise?.then(() => this.tryFocus());
    }
  }

  protected render(): React.JSX.Element {
    const { model } = this;
    return (
      <SharePanel
        state={model.state}
        now={Date.now()}
        history={model.history}
        painter={this._painter}
        onChoose={() => model.forget()}
        onResize={share => void model.resize(share)}
        onBurst={burst => void model.setBurst(burst)}
        onCheckpoint={(run, checkpoint, action) => void this.ask(run, checkpoint, action)}
        holders={{
          onOpen: holder => holder.path && this.open(holder.path),
          onRestart: holder => void this.restart(holder),
          onShutdown: holder => void this.shutdown(holder)
        }}
      />
    );
  }

  private async restart(holder: Held): Promise<void> {
    const body = 'Its variables are lost, and the card memory that it holds is freed. Files and the share are kept.';
    if (await confirmed(`Restart the kernel of ${holder.title}?`, body, 'Restart')) {
      await this.model.restart(holder);
    }
  }

  private async shutdown(holder: Held): Promise<void> {
    const body = 'Its variables are lost, and the card memory that it holds is freed. Files and the share are kept.';
    if (await confirmed(`Shut down the kernel of ${holder.title}?`, body, 'Shut down')) {
      await this.model.shutdown(holder);
    }
  }

  private async ask(run: Run, checkpoint: Checkpoint, action: CheckpointAction): Promise<void> {
    const name = run.title ?? run.run;
    const body = `${name} is asked to go back to ${checkpoint.name}. What it did after that is done again.`;
    if (action !== 'restore' || (await confirmed(`Restore ${checkpoint.name}?`, body, 'Restore'))) {
      await this.model.ask(run.run, checkpoint.name, action);
    }
  }

  private tryFocus(): void {
    const choice = this.node.querySelector<HTMLInputElement>('.jp-gpu-choice input:checked');
    if (choice && this.isVisible) {
      this._focusChoice = false;
      choice.focus();
    }
  }

  private onVisibility = (): void => {
    this._painter.visible = this.isVisible && !document.hidden;
  };

  private _painter = new Painter();
  private _focusChoice = false;
}

async function confirmed(title: string, body: string, label: string): Promise<boolean> {
  const answer = await showDialog({
    title,
    body,
    buttons: [Dialog.cancelButton(), Dialog.warnButton({ label })]
  });
  return answer.button.accept;
}
