/** The connection that an open notebook or console has to its kernel. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';

/** The connection of whatever is open in the main area on this kernel; null if nothing is. */
export function openKernel(shell: JupyterFrontEnd.IShell, id: string): Kernel.IKernelConnection | null {
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
