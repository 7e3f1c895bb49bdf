"""Who is in front and who is behind, on each lane, for all vehicles at once: by sorting, not by comparing pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpuspawner_examples.driving.roads import Road, lane_of
from gpuspawner_examples.driving.vehicles import Vehicles, take

#: Metres beside a lane at which a vehicle still counts as on it, as in highway-env's `neighbour_vehicles`.
_MARGIN = 1.0


@dataclass(frozen=True)
class Neighbours:
    """Where the vehicles are on the road, and the places of their neighbours; all (roads, places), and with lanes.

    A neighbour -1 is nobody. Somebody between two lanes is a neighbour on both.
    """

    road: Road
    vehicles: Vehicles
    station: torch.Tensor  #: m along lane 0
    offset: torch.Tensor  #: m to the left of lane 0
    lane: torch.Tensor  #: int64
    front: torch.Tensor  #: (roads, places, lanes), int64
    rear: torch.Tensor  #: (roads, places, lanes), int64

    def in_front(self, lane: torch.Tensor) -> torch.Tensor:
        """Who is in front on `lane` (roads, places; int64)."""
        return self.front.gather(2, lane.unsqueeze(2)).squeeze(2)

    def behind(self, lane: torch.Tensor) -> torch.Tensor:
        """Who is behind on `lane`."""
        return self.rear.gather(2, lane.unsqueeze(2)).squeeze(2)

    def distance(self, follower: torch.Tensor, leader: torch.Tensor) -> torch.Tensor:
        """Metres along the follower's lane, middle to middle; infinite where one of both (places or -1) is nobody."""
        along = take(self.station, leader) - take(self.station, follower)
        if self.road.closed:
            along = along.remainder(self.road.length)
        middle = take(self.lane, follower) * self.road.lane_width
        along = along * self.road.stretch(middle.to(along.dtype))
        return torch.where((follower >= 0) & (leader >= 0), along, torch.inf)

    def approach(self, follower: torch.Tensor, leader: torch.Tensor) -> torch.Tensor:
        """m/s by which the follower is faster, in its own direction; 0 where one of both is nobody."""
        turned = take(self.vehicles.heading, leader) - take(self.vehicles.heading, follower)
        faster = take(self.vehicles.speed, follower) - take(self.vehicles.speed, leader) * torch.cos(turned)
        return torch.where((follower >= 0) & (leader >= 0), faster, 0.0)


def find(road: Road, vehicles: Vehicles) -> Neighbours:
    """The neighbours of all vehicles on all lanes, in the time of sorting them."""
    station, offset = road.local(vehicles.x, vehicles.y)
    sides = [
        _on_lane(road, vehicles.present & ((offset - lane * road.lane_width).abs() <= _reach(road)), station)
        for lane in range(road.lanes)
    ]
    front = torch.stack([one for one, _ in sides], 2)
    rear = torch.stack([one for _, one in sides], 2)
    return Neighbours(road, vehicles, station, offset, lane_of(road, offset), front, rear)


def _reach(road: Road) -> float:
    return road.lane_width / 2 + _MARGIN


def _on_lane(road: Road, there: torch.Tensor, station: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(front, rear) among those who are `there`, for everybody."""
    places = station.shape[1]
    ordered, who = torch.where(there, station, torch.inf).sort(dim=1)
    count = there.sum(1, keepdim=True)
    after = torch.searchsorted(ordered, station.contiguous())
    before = after - 1
    myself = torch.arange(places, device=station.device).expand_as(after)
    # who is on the lane finds themselves first
    after = after + (who.gather(1, after.clamp(max=places - 1)) == myself).long() * there.long()
    if road.closed:
        wrap = count.clamp(min=1)
        after, before = after.remainder(wrap), before.remainder(wrap)
    front = torch.where((after < count) & (count > 0), who.gather(1, after.clamp(max=places - 1)), -1)
    rear = torch.where((before >= 0) & (count > 0), who.gather(1, before.clamp(0, places - 1)), -1)
    return torch.where(front == myself, -1, front), torch.where(rear == myself, -1, rear)
