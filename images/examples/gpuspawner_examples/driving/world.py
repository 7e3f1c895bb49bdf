"""A world of vehicles: it is stepped, and it grows."""

from __future__ import annotations

import math

import torch

from gpuspawner_examples.driving import boxes, lanes, memory, neighbours
from gpuspawner_examples.driving.bicycle import advance
from gpuspawner_examples.driving.idm import Driver
from gpuspawner_examples.driving.roads import Road
from gpuspawner_examples.driving.vehicles import LENGTH, Vehicles

#: m from middle to middle that a vehicle keeps from others when it is put on a road.
_CLEAR = LENGTH + 2.0
#: Seconds of a step; highway-env steps 15 times a second too.
SECONDS = 1 / 15


class World:
    """Vehicles on copies of one road, each with `places`; those of one copy see each other.

    The same seed, sizes and device give the same traffic. `steps` and `vehicles` count; `state` has the tensors, and
    `seen` what the lidar saw in the last step (roads, places, rays; m), None before the first.
    """

    def __init__(
        self,
        road: Road,
        vehicles: int,
        *,
        places: int = 200,
        driver: Driver | None = None,
        wish: tuple[float, float] = (20.0, 30.0),
        rays: int = 16,
        reach: float = 60.0,
        lane_changes: bool = True,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`wish`: between which speeds (m/s) the drivers' wishes lie. `rays` and `reach` (m) of each lidar; 0: none.

        Raises ValueError where `places` do not fit on the road, or `vehicles` is negative.
        """
        self.road = road
        self.driver = driver or Driver()
        self.rays, self.reach, self.lane_changes = rays, reach, lane_changes
        self.steps = 0
        self.seen: torch.Tensor | None = None
        self._wish, self._seed, self._grown = wish, seed, 0
        self._in_lane = math.ceil(places / road.lanes)
        self._pitch = road.length / self._in_lane
        if places < 1 or self._pitch < _CLEAR:
            most = int(road.length / _CLEAR) * road.lanes
            raise ValueError(f"places is {places}: on this road it must be from 1 to {most}.")
        self.state = Vehicles.nobody(0, places, torch.device(device), dtype)
        self.grow(vehicles)

    @property
    def vehicles(self) -> int:
        """How many there are."""
        return int(self.state.present.sum())

    @property
    def crashed(self) -> int:
        """How many of them have collided."""
        return int(self.state.crashed.sum())

    @property
    def bytes_for_each(self) -> int:
        """Memory for each place for a vehicle, at most."""
        return memory.bytes_for_each(self.state.shape[1], self.road.lanes, self.rays, self.state.x.dtype)

    def fitting(self, bytes_there: int) -> int:
        """How many vehicles of this kind fit into so much memory."""
        return memory.fitting(bytes_there, self.state.shape[1], self.road.lanes, self.rays, self.state.x.dtype)

    def step(self, seconds: float = SECONDS) -> None:
        """All drivers decide, then all vehicles move, then who touches whom and what the lidars see."""
        self.state = move(self.road, self.driver, self.state, seconds, self.lane_changes)
        if self.rays:
            self.seen = boxes.lidar(self.state, self.rays, self.reach)
        self.steps += 1

    def grow(self, more: int) -> None:
        """Add vehicles: into gaps of the roads that there are, then on further roads. Nobody else is touched.

        Raises ValueError for a negative number.
        """
        if more < 0:
            raise ValueError(f"more is {more}: it must be from 0.")
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + self._grown)
        self._grown += 1
        more -= self._fill(more, random)
        if more:
            places = self.state.shape[1]
            roads = math.ceil(more / places)
            fresh = Vehicles.nobody(roads, places, self.state.x.device, self.state.x.dtype)
            self.state = self.state.and_(fresh)
            rank = torch.full((self.state.shape[0],), 0)
            rank[-roads:] = places
            rank[-1] = more - (roads - 1) * places
            self._place(rank, random)

    def _fill(self, more: int, random: torch.Generator) -> int:
        """Put vehicles into gaps; how many."""
        free = (~self.state.present).sum(1).cpu()
        if not more or not int(free.sum()):
            return 0
        _, _, clear = self._candidates(random)
        room = torch.minimum((clear.cpu() >= 2 * _CLEAR).sum(1), free)
        before = room.cumsum(0) - room
        return self._place(torch.minimum(room, (more - before).clamp(min=0)), random)

    def _candidates(self, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(stations m, lanes, m to the nearest vehicle of that lane), each (roads, candidates); one for each place."""
        count = self._in_lane * self.road.lanes
        number = torch.arange(count)
        lane = number % self.road.lanes
        shaken = torch.rand(self.state.shape[0], count, generator=random) - 0.5
        shake = min(0.4 * self._pitch, self._pitch - _CLEAR)
        # neighbouring lanes are set off against each other
        first = number // self.road.lanes + lane / self.road.lanes
        station = (first * self._pitch + shaken * shake).to(self.state.x.device, self.state.x.dtype)
        lane = lane.to(self.state.x.device).expand(self.state.shape[0], -1)
        near = neighbours.find(self.road, self.state)
        apart = (station.unsqueeze(2) - near.station.unsqueeze(1)).abs()
        if self.road.closed:
            station = station.remainder(self.road.length)
            apart = apart.remainder(self.road.length)
            apart = torch.minimum(apart, self.road.length - apart)
        aside = near.offset.unsqueeze(1) - (lane * self.road.lane_width).unsqueeze(2)
        there = self.state.present.unsqueeze(1) & (aside.abs() < self.road.lane_width)
        clear = torch.where(there, apart, torch.inf).amin(2)
        return station, lane, clear

    def _place(self, wanted: torch.Tensor, random: torch.Generator) -> int:
        """Put so many vehicles (roads) into each road's free places, where it is clearest; how many in all."""
        state, device = self.state, self.state.x.device
        station, lane, clear = self._candidates(random)
        # among places that are equally clear the dice decide
        dice = torch.rand(clear.shape, generator=random).to(clear)
        best = (clear.clamp(max=self.road.length) + dice).argsort(dim=1, descending=True)[:, : state.shape[1]]
        free = state.present.long().argsort(dim=1, stable=True)
        is_new = torch.arange(state.shape[1], device=device) < wanted.to(device).unsqueeze(1)
        station, lane = station.gather(1, best), lane.gather(1, best)
        x, y = self.road.position(station, (lane * self.road.lane_width).to(station.dtype))
        low, high = self._wish
        wish = (torch.rand(x.shape, generator=random) * (high - low) + low).to(x)
        timer = torch.rand(x.shape, generator=random).to(x)
        # as fast as the density allows at once, so that nobody has to brake hard at first
        spacing = self.road.length * self.road.lanes / (state.present.sum(1) + wanted.to(device)).clamp(min=1)
        calm = ((spacing - self.driver.length - self.driver.distance) / self.driver.time).clamp(min=0).unsqueeze(1)
        new = {
            "x": x,
            "y": y,
            "heading": self.road.heading(station),
            "speed": torch.minimum(wish.clamp(max=self.road.speed_limit), calm.to(x)),
            "wish": wish,
            "timer": timer,
            "target": lane,
            "present": torch.ones_like(is_new),
        }
        changed = {}
        for name, values in new.items():
            old = getattr(state, name)
            changed[name] = old.scatter(1, free, torch.where(is_new, values.to(old.dtype), old.gather(1, free)))
        self.state = state.with_(**changed)
        return int(wanted.sum())


def move(road: Road, driver: Driver, state: Vehicles, seconds: float, lane_changes: bool = True) -> Vehicles:
    """One step without lidar: decide, move, find out who has collided."""
    near = neighbours.find(road, state)
    if lane_changes:
        target, timer = lanes.choose(driver, near)
        state = state.with_(target=target, timer=timer)
    steering = lanes.steering(road, state, state.target, driver)
    acceleration = lanes.follow(driver, near, state.target, seconds)
    state = advance(state, steering, acceleration, seconds)
    return state.with_(crashed=state.crashed | boxes.collided(state))
