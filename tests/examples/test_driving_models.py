"""The simulation of vehicles against highway-env's own classes, part by part and as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gpuspawner_examples.driving import (  # noqa: E402
    TREIBER_2000,
    Driver,
    RingRoad,
    StraightRoad,
    Vehicles,
    bicycle,
    boxes,
    equilibrium_distance,
    idm,
    lanes,
    neighbours,
    roads,
    world,
)
from highway_env.envs.common.observation import LidarObservation  # noqa: E402
from highway_env.road.road import Road, RoadNetwork  # noqa: E402
from highway_env.vehicle.behavior import IDMVehicle  # noqa: E402
from highway_env.vehicle.kinematics import Vehicle  # noqa: E402

ROAD = StraightRoad(lanes=4, length=10_000)
SECONDS = world.SECONDS


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are done sooner by one thread, above all where others compute too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def theirs(poses: np.ndarray, wishes: np.ndarray, **options: Any) -> list[Any]:
    """highway-env's vehicles on its straight road, at `poses` (vehicles, 4: x, y, heading, speed)."""
    road = Road(RoadNetwork.straight_road_network(4, length=10_000, speed_limit=30), np_random=np.random.RandomState(0))
    road.vehicles = [
        IDMVehicle(road, [x, y], heading, speed, target_speed=wish, **options)
        for (x, y, heading, speed), wish in zip(poses, wishes, strict=True)
    ]
    return list(road.vehicles)


def ours(vehicles: list[Any]) -> Vehicles:
    """The same vehicles as tensors: one road, float64."""

    def tensor(values: list[Any], dtype: Any = torch.float64) -> Any:
        return torch.tensor([values], dtype=dtype)

    state = Vehicles.nobody(1, len(vehicles), torch.device("cpu"), torch.float64)
    return state.with_(
        x=tensor([float(each.position[0]) for each in vehicles]),
        y=tensor([float(each.position[1]) for each in vehicles]),
        heading=tensor([float(each.heading) for each in vehicles]),
        speed=tensor([float(each.speed) for each in vehicles]),
        wish=tensor([float(getattr(each, "target_speed", 0.0)) for each in vehicles]),
        timer=tensor([float(getattr(each, "timer", 0.0)) for each in vehicles]),
        target=tensor([getattr(each, "target_lane_index", (0, 0, 0))[2] for each in vehicles], torch.int64),
        present=torch.ones(1, len(vehicles), dtype=torch.bool),
    )


def traffic(seed: int, count: int, aside: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Poses of vehicles that do not overlap, and wishes; `aside` metres beside the middle of their lanes at most."""
    random = np.random.default_rng(seed)
    slots = random.permutation(count)
    poses = np.zeros((count, 4))
    poses[:, 0] = 100 + slots * 7 + random.uniform(-1, 1, count)
    poses[:, 1] = 4 * random.integers(0, 4, count) + random.uniform(-aside, aside, count)
    poses[:, 2] = random.uniform(-0.05, 0.05, count)
    poses[:, 3] = random.uniform(5, 28, count)
    return poses, random.uniform(15, 35, count)


def test_a_vehicle_moves_as_highway_envs_does_under_any_controls() -> None:
    random = np.random.default_rng(1)
    single = [Vehicle(None, [0.0, 0.0], heading=random.uniform(-3, 3), speed=random.uniform(-30, 38)) for _ in range(8)]
    state = ours(single)
    for _ in range(1000):
        steering, acceleration = random.uniform(-1, 1, 8), random.uniform(-8, 8, 8)
        for vehicle, angle, more in zip(single, steering, acceleration, strict=True):
            vehicle.act({"steering": angle, "acceleration": more})
            vehicle.step(SECONDS)
        state = bicycle.advance(state, torch.tensor(steering[None]), torch.tensor(acceleration[None]), SECONDS)
    for name, values in {
        "x": [v.position[0] for v in single],
        "y": [v.position[1] for v in single],
        "heading": [v.heading for v in single],
        "speed": [v.speed for v in single],
    }.items():
        np.testing.assert_allclose(getattr(state, name)[0], np.array(values, dtype=float), rtol=0, atol=1e-9)
    assert max(abs(v.speed) for v in single) > 5


def test_beyond_the_fastest_and_after_a_crash_it_brakes_as_there() -> None:
    single = [Vehicle(None, [0.0, 0.0], speed=speed) for speed in (45.0, -44.0, 20.0)]
    single[2].crashed = True
    state = ours(single).with_(crashed=torch.tensor([[False, False, True]]))
    for _ in range(40):
        for vehicle in single:
            vehicle.act({"steering": 0.1, "acceleration": 3.0 if vehicle.speed > 0 else -3.0})
            vehicle.step(SECONDS)
        push = torch.where(state.speed > 0, 3.0, -3.0).double()
        state = bicycle.advance(state, torch.full_like(state.x, 0.1), push, SECONDS)
    np.testing.assert_allclose(state.speed[0], [v.speed for v in single], atol=1e-12)
    np.testing.assert_allclose(state.y[0], [v.position[1] for v in single], atol=1e-9)


def test_drivers_accelerate_and_steer_as_highway_envs_do() -> None:
    for seed in range(5):
        single = theirs(*traffic(seed, 60, aside=3.0), enable_lane_change=False)
        state = ours(single)
        near = neighbours.find(ROAD, state)
        for vehicle in single:
            vehicle.act()
        np.testing.assert_array_equal(near.lane[0], [v.lane_index[2] for v in single])
        expected = np.array([v.action["acceleration"] for v in single])
        found = lanes.follow(Driver(), near, state.target, SECONDS)
        np.testing.assert_allclose(found[0], expected, atol=1e-9)
        assert len(set(np.round(expected, 3))) > 20
        angles = lanes.steering(ROAD, state, state.target, Driver())
        np.testing.assert_allclose(angles[0], [v.action["steering"] for v in single], atol=1e-12)


def test_lane_changes_are_wanted_by_those_who_want_them_there() -> None:
    wanted = 0
    for seed in range(5):
        single = theirs(*traffic(seed, 60))
        near = neighbours.find(ROAD, ours(single))
        for side in (-1, 1):
            expected = [
                0 <= v.lane_index[2] + side < 4 and v.mobil((*v.lane_index[:2], v.lane_index[2] + side)) for v in single
            ]
            assert lanes.mobil(Driver(), near, side)[0].tolist() == expected
            wanted += sum(expected)
    assert 20 < wanted < 580


def test_who_is_cut_off_gives_up_the_change_as_there() -> None:
    poses = np.array([[100.0, 0, 0, 25], [112.0, 8, 0, 15], [300.0, 0, 0, 25], [500.0, 8, 0, 15]])
    single = theirs(poses, np.full(4, 25.0))
    for vehicle in single:
        vehicle.target_lane_index = (*vehicle.lane_index[:2], 1)
    state = ours(single)
    target, _ = lanes.choose(Driver(), neighbours.find(ROAD, state))
    for vehicle in single:
        vehicle.change_lane_policy()
    assert target[0].tolist() == [v.target_lane_index[2] for v in single] == [0, 1, 1, 1]


def test_whole_traffic_drives_as_there_for_ten_seconds() -> None:
    poses, wishes = traffic(7, 30)
    poses[:, 0] = 100 + (poses[:, 0] - 100) * 4
    single = theirs(poses, wishes, enable_lane_change=False)
    state = ours(single)
    road = single[0].road
    for _ in range(150):
        road.act()
        road.step(SECONDS)
        state = world.move(ROAD, Driver(), state, SECONDS, lane_changes=False)
    assert not any(v.crashed for v in single)
    assert not state.crashed.any()
    np.testing.assert_allclose(state.x[0], [v.position[0] for v in single], atol=1e-6)
    np.testing.assert_allclose(state.y[0], [v.position[1] for v in single], atol=1e-6)
    np.testing.assert_allclose(state.speed[0], [v.speed for v in single], atol=1e-6)


@pytest.mark.parametrize("driver", [Driver(), TREIBER_2000])
def test_at_the_distance_of_the_closed_form_nobody_accelerates(driver: Driver) -> None:
    ahead = torch.tensor([[0.0]], dtype=torch.float64)
    for speed in (0.0, 5.0, 15.0, 29.0):
        distance = equilibrium_distance(driver, speed, 30.0)
        still = idm.acceleration(driver, ahead + speed, ahead + 30.0, ahead + distance, ahead)
        assert abs(float(still)) < 1e-12


def test_a_platoon_settles_at_the_distance_of_the_closed_form() -> None:
    distance = equilibrium_distance(Driver(), 15.0, 30.0)
    state = Vehicles.nobody(1, 4, torch.device("cpu"), torch.float64)
    state = state.with_(
        x=torch.arange(4, dtype=torch.float64)[None] * (distance + 8),
        speed=torch.full((1, 4), 17.0, dtype=torch.float64),
        wish=torch.tensor([[30.0, 30.0, 30.0, 15.0]], dtype=torch.float64),  # the first is slow
        present=torch.ones(1, 4, dtype=torch.bool),
    )
    for _ in range(500):
        state = world.move(StraightRoad(lanes=1), Driver(), state, SECONDS, lane_changes=False)
    np.testing.assert_allclose(state.x.diff()[0], [distance] * 3, atol=0.02)


def test_equilibrium_needs_a_speed_below_the_wish() -> None:
    with pytest.raises(ValueError, match="speed is 30 m/s"):
        equilibrium_distance(Driver(), 30, 30)


def test_a_ring_has_the_geometry_of_a_circle() -> None:
    ring = RingRoad(lanes=3, length=600.0)
    station = torch.linspace(0, 599, 50, dtype=torch.float64)
    offset = torch.linspace(-1, 9, 50, dtype=torch.float64)
    x, y = ring.position(station, offset)
    back = ring.local(x, y)
    np.testing.assert_allclose(back[0], station, atol=1e-9)
    np.testing.assert_allclose(back[1], offset, atol=1e-9)
    heading = ring.heading(station)
    np.testing.assert_allclose(x * torch.cos(heading) + y * torch.sin(heading), 0, atol=1e-9)
    assert roads.lane_of(ring, torch.tensor([-3.0, 1.9, 2.1, 30.0])).tolist() == [0, 0, 1, 2]
    with pytest.raises(ValueError, match="length is 50 m"):
        RingRoad(lanes=3, length=50.0)


def test_vehicles_on_a_ring_stay_in_their_lanes_and_find_each_other_across_its_end() -> None:
    ring = RingRoad(lanes=2, length=500.0)
    made = world.World(ring, 20, places=20, lane_changes=False, rays=0, dtype=torch.float64, wish=(15, 20))
    before = lanes_of(ring, made)
    for _ in range(250):
        made.step()
    assert torch.equal(lanes_of(ring, made), before)
    near = neighbours.find(ring, made.state)
    assert float((near.offset - near.lane * 4.0).abs().max()) < 0.3
    myself = torch.arange(20).expand(1, 20)
    for lane in (0, 1):
        round_it = near.distance(myself, near.in_front(near.lane))[near.lane == lane].sum()
        assert float(round_it) == pytest.approx(500.0 - lane * 4 * 2 * math.pi)
    assert made.crashed == 0


def lanes_of(ring: RingRoad, made: world.World) -> Any:
    return roads.lane_of(ring, ring.local(made.state.x, made.state.y)[1])


def test_alone_on_a_road_nobody_is_in_front_or_behind() -> None:
    for road in (ROAD, RingRoad()):
        made = world.World(road, 1, places=4)
        near = neighbours.find(road, made.state)
        assert near.front[made.state.present].max() == -1
        assert near.rear[made.state.present].max() == -1


def test_lidar_sees_what_highway_envs_sees() -> None:
    """highway-env gives the cell that a vehicle's middle is in `distance - WIDTH / 2` where that is less; elsewhere it
    computes where the ray meets the rectangle, as we do for all."""
    compared = rough = 0
    for seed in range(3):
        single = theirs(*traffic(seed, 40, aside=1.0))
        seen = boxes.lidar(ours(single), 16, 60.0)[0].numpy()
        for place, vehicle in enumerate(single):
            env = SimpleNamespace(road=vehicle.road, vehicle=vehicle)
            lidar = LidarObservation(env, cells=16, maximum_range=60)
            lidar.observer_vehicle = vehicle
            grid = lidar.trace(vehicle.position, vehicle.velocity)[:, 0]
            middles = [
                (
                    lidar.position_to_index(o.position, vehicle.position),
                    float(np.hypot(*(o.position - vehicle.position))),
                )
                for o in single
                if o is not vehicle
            ]
            for ray in range(16):
                guesses = [distance - 1.0 for index, distance in middles if index == ray and distance <= 60]
                if guesses and abs(grid[ray] - min(guesses)) < 1e-4:
                    rough += 1
                else:
                    compared += 1
                    assert seen[place, ray] == pytest.approx(grid[ray], abs=1e-4)
    assert compared > 1000
    assert rough > 100


def test_rays_meet_rectangles_where_geometry_says() -> None:
    state = Vehicles.nobody(1, 3, torch.device("cpu"), torch.float64).with_(
        x=torch.tensor([[0.0, 20.0, 0.0]], dtype=torch.float64),
        y=torch.tensor([[0.0, 0.0, -30.0]], dtype=torch.float64),
        heading=torch.tensor([[0.3, 0.0, math.pi / 4]], dtype=torch.float64),
        present=torch.ones(1, 3, dtype=torch.bool),
    )
    seen = boxes.lidar(state, 8, 60.0)[0]
    assert float(seen[0, 0]) == pytest.approx(17.5)
    # a ray from below through the middle of a rectangle turned by 45 degrees leaves it at half its width times root 2
    assert float(seen[0, 6]) == pytest.approx(30 - math.sqrt(2))
    assert seen[0, [1, 2, 3, 4, 5, 7]].tolist() == [60.0] * 6
    assert float(seen[1, 4]) == pytest.approx(20 - 2.5 / math.cos(0.3))
    assert boxes.lidar(state, 8, 15.0)[0].min() == 15.0
    assert boxes.lidar(state, 8, 60.0, observers=1).shape == (1, 1, 8)


def test_rectangles_touch_as_in_highway_env_and_in_closed_cases() -> None:
    def touch(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
        poses = [tuple(torch.tensor([value], dtype=torch.float64) for value in pose) for pose in (one, other)]
        return bool(boxes.rectangles_touch(*poses))

    here = (0.0, 0.0, 0.0)
    assert touch(here, (4.99, 0, 0))
    assert not touch(here, (5.01, 0, 0))
    assert touch(here, (0, 1.99, math.pi))
    assert not touch(here, (0, 2.01, 0))
    assert touch(here, (0, 3.49, math.pi / 2))
    assert not touch(here, (0, 3.51, math.pi / 2))
    # a corner into a side: half the diagonal reaches along x when the rectangle is turned by its angle
    corner = math.atan2(2, 5)
    assert touch(here, (2.5 + math.sqrt(29) / 2 - 0.01, 0, corner))
    assert not touch(here, (2.5 + math.sqrt(29) / 2 + 0.01, 0, corner))
    random = np.random.default_rng(3)
    found = 0
    for _ in range(2000):
        pose = (*random.uniform(-5, 5, 2), random.uniform(-4, 4))
        pair = [Vehicle(None, [0.0, 0.0], 0.0), Vehicle(None, pose[:2], pose[2])]
        expected = pair[0]._is_colliding(pair[1], 0.0)[0]
        assert touch(here, pose) == expected
        found += bool(expected)
    assert 200 < found < 1800


def test_those_who_touch_have_crashed_and_nobody_else() -> None:
    single = theirs(
        np.array([[0.0, 0, 0, 20], [3.0, 1.5, 0.1, 10], [40.0, 0, 0, 20], [40.0, 4, 0, 20]]), np.full(4, 20.0)
    )
    assert boxes.collided(ours(single)).tolist() == [[True, True, False, False]]
