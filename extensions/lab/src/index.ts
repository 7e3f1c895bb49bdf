import { ILabShell, ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { IStatusBar } from '@jupyterlab/statusbar';

import { GPUAPI } from './api';
import { restartKernel } from './kernels';
import { GPUModel, Kernels } from './model';
import { GPUPanel, StatusItem } from './widgets';

export namespace CommandIDs {
  export const resize = 'gpuspawner:resize';
  export const show = 'gpuspawner:show-status';
  export const toggle = 'gpuspawner:toggle-panel';
}

/** The share of this server's GPU: a side panel, an item in the status bar that opens it, and commands. */
const plugin: JupyterFrontEndPlugin<void> = {
  id: 'gpuspawner-lab:plugin',
  description: 'Shows the GPU share of this server and resizes it while kernels run.',
  autoStart: true,
  optional: [IStatusBar, ICommandPalette, ILayoutRestorer, ILabShell],
  activate: (
    app: JupyterFrontEnd,
    statusBar: IStatusBar | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    labShell: ILabShell | null
  ): void => {
    if (PageConfig.getOption('gpuspawnerSession') !== 'true') {
      return; // a server without a share never gets one
    }
    const { serviceManager, commands, shell } = app;
    const settings = serviceManager.serverSettings;
    const kernels: Kernels = {
      restart: async id => restartKernel(shell, id, settings),
      shutdown: async (id, session) =>
        session ? serviceManager.sessions.shutdown(session) : serviceManager.kernels.shutdown(id)
    };
    const model = new GPUModel(new GPUAPI(settings), serviceManager.events.stream, kernels);
    const present = (): boolean => model.state.presence === 'session';

    const panel = new GPUPanel(model, path => void commands.execute('docmanager:open', { path }));
    shell.add(panel, 'right', { rank: 650 });
    restorer?.add(panel, panel.id);

    statusBar?.registerStatusItem(plugin.id, {
      item: new StatusItem(model, () => void commands.execute(CommandIDs.toggle)),
      align: 'left',
      rank: 5,
      isActive: present,
      activeStateChanged: model.changed as never
    });

    const none = { args: { type: 'object' as const, properties: {} } };
    commands.addCommand(CommandIDs.resize, {
      label: 'GPU: Resize share…',
      caption: 'Change how much of the card this server holds; kernels keep running',
      isEnabled: () => present() && model.state.session?.resizable !== false,
      describedBy: none,
      execute: () => {
        shell.activateById(panel.id);
        panel.focusChoice();
      }
    });
    commands.addCommand(CommandIDs.show, {
      label: 'GPU: Show panel',
      caption: 'Share, memory, utilisation, who holds what, checkpoints',
      describedBy: none,
      execute: () => shell.activateById(panel.id)
    });
    commands.addCommand(CommandIDs.toggle, {
      label: 'GPU: Show or hide panel',
      describedBy: none,
      execute: () => {
        if (!panel.isVisible || !labShell) {
          shell.activateById(panel.id);
        } else if ([...labShell.widgets('left')].includes(panel)) {
          labShell.collapseLeft();
        } else {
          labShell.collapseRight();
        }
      }
    });
    for (const command of Object.values(CommandIDs)) {
      palette?.addItem({ command, category: 'GPU' });
    }
    let before = '';
    model.changed.connect((_, state) => {
      const now = `${state.presence} ${state.session?.resizable}`;
      if (now !== before) {
        before = now;
        commands.notifyCommandChanged();
      }
    });
    void model.refresh();
  }
};

export default plugin;
