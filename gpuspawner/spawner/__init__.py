"""JupyterHub's side: asks the service for a session and starts the server in it."""
