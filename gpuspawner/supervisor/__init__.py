"""Runs the parts of one machine side by side: simulated cards, proxy, service, hub."""

from gpuspawner.supervisor.commands import stop, up

__all__ = ["stop", "up"]
