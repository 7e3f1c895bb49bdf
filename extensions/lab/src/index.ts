import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette } from '@jupyterlab/apputils';
import { IStatusBar } from '@jupyterlab/statusbar';

import { GPUAPI } from './api';
import { GPUModel } from './model';
import { PanelDialog, SharePanelWidget, StatusItem } from './widgets';

export namespace CommandIDs {
  export const resize = 'gpuspawner:resize';
  export const show = 'gpuspawner:show-status';
}

/** The share of this server's GPU in the status bar, and the commands around it. */
const plugin: JupyterFrontEndPlugin<void> = {
  id: 'gpuspawner-lab:plugin',
  description: 'Shows the GPU share of this server and resizes it while kernels run.',
  autoStart: true,
  optional: [IStatusBar, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    statusBar: IStatusBar | null,
    palette: ICommandPalette | null
  ): void => {
    const { serviceManager, commands } = app;
    const model = new GPUModel(
      new GPUAPI(serviceManager.serverSettings),
      serviceManager.events.stream
    );
    const item = new StatusItem(model);
    const present = (): boolean => model.state.presence === 'session';

    statusBar?.registerStatusItem(plugin.id, {
      item,
      align: 'left',
      rank: 5,
      isActive: present,
      activeStateChanged: model.changed as never
    });

    const open = async (): Promise<void> => {
      if (item.isVisible) {
        item.toggle();
        return;
      }
      // The status bar is switched off: the same panel in the middle of the window.
      await new PanelDialog({
        body: new SharePanelWidget(model),
        focusNodeSelector: '.jp-gpu-choice input:checked',
        buttons: [Dialog.cancelButton({ label: 'Close' })]
      }).launch();
    };
    commands.addCommand(CommandIDs.resize, {
      label: 'GPU: Resize share…',
      caption: 'Change how much of the card this server holds; kernels keep running',
      isVisible: present,
      isEnabled: () => present() && model.state.session?.resizable !== false,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: open
    });
    commands.addCommand(CommandIDs.show, {
      label: 'GPU: Show status',
      caption: 'Share, memory, utilisation, power and temperature',
      isVisible: present,
      isEnabled: present,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: open
    });
    for (const command of Object.values(CommandIDs)) {
      palette?.addItem({ command, category: 'GPU' });
    }
    let before = false;
    model.changed.connect(() => {
      if (present() !== before) {
        before = present();
        commands.notifyCommandChanged();
      }
    });
  }
};

export default plugin;
