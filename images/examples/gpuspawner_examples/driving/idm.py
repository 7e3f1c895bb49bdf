"""How a driver keeps their distance: the Intelligent Driver Model.

Treiber, Hennecke and Helbing, "Congested traffic states in empirical observations and microscopic simulations",
Physical Review E 62 (2000), 1805. A driver with speed v, who would like v0, and is d behind somebody whom they
approach at dv, accelerates by

    a (1 - (v / v0)^delta - (d* / d)^2)    with    d* = d0 + v T + v dv / (2 sqrt(a b))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gpuspawner_examples.driving.vehicles import LENGTH, not_zero


@dataclass(frozen=True)
class Driver:
    """Parameters of the model. The defaults are those of highway-env's `IDMVehicle`."""

    comfortable: float = 3.0  #: a, acceleration on a free road, m/s²
    braking: float = 5.0  #: b, comfortable deceleration, m/s²
    distance: float = 5.0 + LENGTH  #: d0, what is kept in a jam, m
    length: float = 0.0  #: taken from middle to middle to get d, m; in highway-env d is from middle to middle
    time: float = 1.5  #: T, time to the vehicle in front, s
    exponent: float = 4.0  #: delta
    strongest: float = 6.0  #: at most this much is accelerated or braked, m/s²
    crawl: float = 0.01  #: slower than this, m/s, the wheels are turned as at this speed, not further
    reverses: bool = True  #: whether who stands too near rolls back, as in highway-env; else they stand still


#: Values of the paper's table I, for traffic in which waves grow: with its slow acceleration a small disturbance does.
#: The paper measures d from bumper to bumper.
TREIBER_2000 = Driver(comfortable=0.73, braking=1.67, distance=2.0, length=LENGTH, time=1.6, crawl=2.0, reverses=False)


def desired_distance(driver: Driver, speed: torch.Tensor, approach: torch.Tensor) -> torch.Tensor:
    """d* in m, for a speed and the speed at which the one in front is approached (m/s)."""
    root = 2 * math.sqrt(driver.comfortable * driver.braking)
    return driver.distance + speed * driver.time + speed * approach / root


def acceleration(
    driver: Driver, speed: torch.Tensor, wish: torch.Tensor, distance: torch.Tensor, approach: torch.Tensor
) -> torch.Tensor:
    """What the model says, m/s², not clipped; `distance` (m, middle to middle) is infinite where nobody is in front."""
    free = (speed.clamp(min=0) / not_zero(wish).abs()) ** driver.exponent
    near = (desired_distance(driver, speed, approach) / not_zero(distance - driver.length)) ** 2
    return driver.comfortable * (1 - free - near)


def equilibrium_distance(driver: Driver, speed: float, wish: float) -> float:
    """Metres from middle to middle at which nobody accelerates, all driving at `speed` (m/s): solved from the model.

    Raises ValueError where `speed` is not below `wish`.
    """
    if not 0 <= speed < wish:
        raise ValueError(f"speed is {speed:g} m/s: it must be from 0 to below the wished {wish:g} m/s.")
    return driver.length + (driver.distance + speed * driver.time) / math.sqrt(1 - (speed / wish) ** driver.exponent)
