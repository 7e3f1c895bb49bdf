"""Simulated GPU cards behind the real C interfaces.

The daemon and the client libraries are C (see `src/`); this package builds them, starts a daemon and talks to it:

    with SimulatedCards("2*h100-80gb") as cards:
        subprocess.run(program, env=os.environ | cards.env())
        cards.control("set 0 temperature 91")
"""

from __future__ import annotations

from gpuspawner.simulation.build import BIN, BuildError, build
from gpuspawner.simulation.cards import SimulatedCards, SimulationError
from gpuspawner.simulation.control import Control, ControlError, control

__all__ = ["BIN", "BuildError", "Control", "ControlError", "SimulatedCards", "SimulationError", "build", "control"]
