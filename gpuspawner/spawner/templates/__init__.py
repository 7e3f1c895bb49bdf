"""Templates: the form, and in hub/ JupyterHub's own pages where they are touched."""

from pathlib import Path

#: The folder for JupyterHub's `template_paths`. Each page in it extends JupyterHub's of the same name.
TEMPLATES = Path(__file__).parent / "hub"
