"""A real Kubernetes for tests: built from Go modules, started in namespaces of its own, gone with the process that
started it."""
