"""How a vehicle moves: the kinematic bicycle.

The equations and the order of integration (explicit Euler: position, heading, speed) are those of `Vehicle.step` of
highway-env 1.12 (Leurent, 2018), which takes them from Polack et al., "The kinematic bicycle model", IV 2017: with the
wheels' axles half a length before and behind the middle, a steering angle d turns the way by the slip angle
b = atan(tan(d) / 2), and

    x' = v cos(h + b)    y' = v sin(h + b)    h' = v sin(b) / (LENGTH / 2)    v' = a
"""

from __future__ import annotations

import torch

from gpuspawner_examples.driving.vehicles import LENGTH, Vehicles

#: m/s; beyond it a vehicle is braked by as much as it is too fast, in each second
FASTEST = 40.0


def advance(vehicles: Vehicles, steering: torch.Tensor, acceleration: torch.Tensor, seconds: float) -> Vehicles:
    """One step of `seconds` under `steering` (rad) and `acceleration` (m/s²), both (roads, places).

    Who has crashed steers straight on and brakes by their speed in each second, as in highway-env. (There they are
    also pushed apart; here they stay where they are.)
    """
    speed = vehicles.speed
    steering = torch.where(vehicles.crashed, torch.zeros_like(steering), steering)
    acceleration = torch.where(vehicles.crashed, -speed, acceleration)
    slowed = torch.minimum(acceleration, FASTEST - speed)
    hastened = torch.maximum(acceleration, -FASTEST - speed)
    acceleration = torch.where(speed > FASTEST, slowed, torch.where(speed < -FASTEST, hastened, acceleration))
    slip = torch.atan(0.5 * torch.tan(steering))
    way = vehicles.heading + slip
    moved = vehicles.present.to(speed.dtype) * seconds
    return vehicles.with_(
        x=vehicles.x + speed * torch.cos(way) * moved,
        y=vehicles.y + speed * torch.sin(way) * moved,
        heading=vehicles.heading + speed * torch.sin(slip) / (LENGTH / 2) * moved,
        speed=speed + acceleration * moved,
        steering=steering,
        acceleration=acceleration,
        timer=vehicles.timer + moved,
    )
