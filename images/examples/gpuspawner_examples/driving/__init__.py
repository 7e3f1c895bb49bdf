"""Driving: many vehicles at once, as tensors.

    from gpuspawner_examples.driving import Drive, RingRoad, World

    world = World(RingRoad(), 200)
    world.step()

Vehicles are kinematic bicycles, drivers follow each other by the Intelligent Driver Model and change lanes by MOBIL;
each vehicle has a lidar, and collisions are found. Models and parameters are those of highway-env, against which the
tests compare them.
"""

from gpuspawner_examples.driving.device import pick
from gpuspawner_examples.driving.idm import TREIBER_2000, Driver, equilibrium_distance
from gpuspawner_examples.driving.roads import RingRoad, StraightRoad
from gpuspawner_examples.driving.share import Drive, Spread, allowed
from gpuspawner_examples.driving.vehicles import LENGTH, WIDTH, Vehicles
from gpuspawner_examples.driving.world import SECONDS, World

__all__ = [
    "LENGTH",
    "SECONDS",
    "TREIBER_2000",
    "WIDTH",
    "Drive",
    "Driver",
    "RingRoad",
    "Spread",
    "StraightRoad",
    "Vehicles",
    "World",
    "allowed",
    "equilibrium_distance",
    "pick",
]
