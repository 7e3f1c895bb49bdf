"""How a driver steers, and when they change lanes.

Steering is the cascade of highway-env's `ControlledVehicle.steering_control`: offset from the lane, speed to the side,
heading, steering angle. Lane changes are MOBIL (Kesting, Treiber and Helbing, "General lane-changing model MOBIL for
car-following models", Transportation Research Record 1999 (2007), 86) as in `IDMVehicle.mobil`, whose politeness is 0:
a driver goes where they can accelerate more, unless somebody would have to brake hard for them.
"""

from __future__ import annotations

import math

import torch

from gpuspawner_examples.driving import idm
from gpuspawner_examples.driving.idm import Driver
from gpuspawner_examples.driving.neighbours import Neighbours
from gpuspawner_examples.driving.roads import Road
from gpuspawner_examples.driving.vehicles import LENGTH, Vehicles, not_zero, take

#: 1/s, gains of the cascade; s, how far ahead the road is looked at; rad, what the wheels can do
_TO_SIDE, _TO_HEADING, _AHEAD, _MOST = 1 / 0.6, 1 / 0.2, 0.1, math.pi / 3
#: m/s² that a change must gain, and that it may make somebody brake; s between two thoughts; m/s to change at all
_GAIN, _IMPOSED, _EVERY, _SLOWEST = 0.2, 2.0, 1.0, 1.0


def steering(road: Road, vehicles: Vehicles, target: torch.Tensor, driver: Driver) -> torch.Tensor:
    """The steering angle (rad) that brings vehicles to the middle of lane `target` (roads, places; int64)."""
    station, offset = road.local(vehicles.x, vehicles.y)
    middle = (target * road.lane_width).to(offset.dtype)
    speed = not_zero(vehicles.speed, driver.crawl)
    ahead = station * road.stretch(middle) + vehicles.speed * _AHEAD
    to_side = -_TO_SIDE * (offset - middle)
    turn = torch.asin((to_side / speed).clamp(-1, 1)).clamp(-math.pi / 4, math.pi / 4)
    away = road.heading(ahead, middle) + turn - vehicles.heading
    rate = _TO_HEADING * ((away + math.pi).remainder(2 * math.pi) - math.pi)
    slip = torch.asin((LENGTH / 2 / speed * rate).clamp(-1, 1))
    return torch.atan(2 * torch.tan(slip)).clamp(-_MOST, _MOST)


def accelerations(driver: Driver, near: Neighbours, follower: torch.Tensor, leader: torch.Tensor) -> torch.Tensor:
    """What `follower` would do behind `leader` (places or -1), m/s²; 0 where the follower is nobody."""
    wish = take(near.vehicles.wish, follower).clamp(0, near.road.speed_limit)
    speed = take(near.vehicles.speed, follower)
    found = idm.acceleration(driver, speed, wish, near.distance(follower, leader), near.approach(follower, leader))
    return torch.where(follower >= 0, found, 0.0)


def follow(driver: Driver, near: Neighbours, target: torch.Tensor, seconds: float) -> torch.Tensor:
    """Acceleration (m/s²) of everybody for the next `seconds`; who changes lanes heeds both. Clipped to what the driver
    does at most."""
    myself = _everybody(near)
    here = accelerations(driver, near, myself, near.in_front(near.lane))
    there = accelerations(driver, near, myself, near.in_front(target))
    found = torch.minimum(here, there).clamp(-driver.strongest, driver.strongest)
    return found if driver.reverses else torch.maximum(found, -near.vehicles.speed / seconds)


def mobil(driver: Driver, near: Neighbours, side: int) -> torch.Tensor:
    """Whether a change by `side` lanes (-1 or 1) is safe and worth it, for everybody (roads, places; bool)."""
    myself = _everybody(near)
    wanted = near.lane + side
    exists = (wanted >= 0) & (wanted < near.road.lanes)
    wanted = wanted.clamp(0, near.road.lanes - 1)
    safe = accelerations(driver, near, near.behind(wanted), myself) >= -_IMPOSED
    then = accelerations(driver, near, myself, near.in_front(wanted))
    now = accelerations(driver, near, myself, near.in_front(near.lane))
    return exists & safe & (then - now >= _GAIN)


def choose(driver: Driver, near: Neighbours) -> tuple[torch.Tensor, torch.Tensor]:
    """(lane that each driver steers to now, their timers): once a second a change is thought about.

    Who is changing gives up where somebody closely in front is changing into the same lane. All decide at the same
    moment, in highway-env one after the other.
    """
    vehicles = near.vehicles
    changing = near.lane != vehicles.target
    target = torch.where(changing & _cut_off(driver, near, changing), near.lane, vehicles.target)
    due = ~changing & (vehicles.timer > _EVERY) & ~vehicles.crashed
    moving = due & (vehicles.speed.abs() >= _SLOWEST)
    for side in (-1, 1):
        target = torch.where(moving & mobil(driver, near, side), near.lane + side, target)
    target = torch.where(vehicles.crashed, vehicles.target, target)
    return target, torch.where(due, torch.zeros_like(vehicles.timer), vehicles.timer)


def _cut_off(driver: Driver, near: Neighbours, changing: torch.Tensor) -> torch.Tensor:
    """Whether somebody within the desired distance in front changes into the same lane; by pairs."""
    vehicles = near.vehicles
    ahead = near.station.unsqueeze(1) - near.station.unsqueeze(2)
    if near.road.closed:
        ahead = (ahead + near.road.length / 2).remainder(near.road.length) - near.road.length / 2
    turned = vehicles.heading.unsqueeze(1) - vehicles.heading.unsqueeze(2)
    speed = vehicles.speed.unsqueeze(2)
    desired = idm.desired_distance(driver, speed, speed - vehicles.speed.unsqueeze(1) * torch.cos(turned))
    same = vehicles.target.unsqueeze(1) == vehicles.target.unsqueeze(2)
    other = (changing & vehicles.present).unsqueeze(1)
    return (other & same & (ahead > 0) & (ahead - driver.length < desired)).any(2)


def _everybody(near: Neighbours) -> torch.Tensor:
    places = near.station.shape[1]
    return torch.arange(places, device=near.station.device).expand_as(near.lane)
