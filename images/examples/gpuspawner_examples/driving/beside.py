"""The same traffic in highway-env, vehicle by vehicle, to compare with. Needs `highway-env` installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from gpuspawner_examples.driving.roads import StraightRoad
from gpuspawner_examples.driving.world import SECONDS, World


class HighwayTraffic:
    """The first road of a world on a `StraightRoad`, as highway-env's `IDMVehicle` objects, each with its lidar.

    Raises ImportError without highway-env, ValueError for another road.
    """

    def __init__(self, world: World, observers: int | None = None) -> None:
        """`observers`: how many of the vehicles have a lidar; None: all."""
        from highway_env.envs.common.observation import LidarObservation
        from highway_env.road.road import Road, RoadNetwork
        from highway_env.vehicle.behavior import IDMVehicle

        road = world.road
        if not isinstance(road, StraightRoad):
            raise ValueError(f"road is a {type(road).__name__}: highway-env is compared on a StraightRoad.")
        lanes = RoadNetwork.straight_road_network(road.lanes, length=3 * road.length, speed_limit=road.speed_limit)
        self.road: Any = Road(lanes, np_random=np.random.RandomState(0))
        state = world.state
        there = state.present[0]
        columns = [getattr(state, name)[0][there].tolist() for name in ("x", "y", "heading", "speed", "wish", "timer")]
        for x, y, heading, speed, wish, timer in zip(*columns, strict=True):
            vehicle = IDMVehicle(
                self.road, [x, y], heading, speed, target_speed=wish, timer=timer, enable_lane_change=world.lane_changes
            )
            self.road.vehicles.append(vehicle)
        self._lidars = []
        for vehicle in self.road.vehicles[:observers] if world.rays else []:
            env = SimpleNamespace(road=self.road, vehicle=vehicle)
            lidar = LidarObservation(env, cells=world.rays, maximum_range=world.reach)
            lidar.observer_vehicle = vehicle
            self._lidars.append(lidar)
        self.seen: list[Any] = []

    def step(self, seconds: float = SECONDS) -> None:
        """Decide, move, collide, look; as `World.step`."""
        self.road.act()
        self.road.step(seconds)
        self.seen = [
            lidar.trace(lidar.observer_vehicle.position, lidar.observer_vehicle.velocity) for lidar in self._lidars
        ]
