/** Kernels as the panel knows them, by their ids. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import { Kernel, KernelAPI, ServerConnection } from '@jupyterlab/services';

/** The connection of whatever is open in the main area on this kernel; null if nothing is. */
function openKernel(shell: JupyterFrontEnd.IShell, id: string): Kernel.IKernelConnection | null {
  for (const widget of shell.widgets('main')) {
    // Notebooks have it in their context, consoles themselves.
    const open = widget as { sessionContext?: ISessionContext; context?: { sessionContext?: ISessionContext } };
    const kernel = (open.sessionContext ?? open.context?.sessionContext)?.session?.kernel;
    if (kernel?.id === id) {
      return kernel;
    }
  }
  return null;
}

/** Restart a kernel, by the connection of the notebook that is open on it, so that it learns of it at once. */
export async function restartKernel(
  shell: JupyterFrontEnd.IShell,
  id: string,
  settings: ServerConnection.ISettings
): Promise<void> {
  try {
    await (openKernel(shell, id)?.restart() ?? KernelAPI.restartKernel(id, settings));
  } catch (error) {
    // Jupyter answers 500 for a kernel that it does not know.
    const found = await KernelAPI.getKernelModel(id, settings).catch(() => null);
    if (found === undefined) {
      throw new Error('This kernel has ended already, so nothing was restarted.');
    }
    throw error;
  }
}
