"""Pictures of a world: a map that is updated in place, and a diagram of space and time."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib import patheffects
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from gpuspawner_examples.driving.roads import Road, lane_of
from gpuspawner_examples.driving.vehicles import LENGTH, WIDTH, Vehicles
from gpuspawner_examples.driving.world import World

#: m around the vehicle in the middle of the close-up
_CLOSE = 62.0


class Map:
    """A live map: all roads, and what one vehicle's lidar sees. `update()` draws anew; `widget` shows it in a notebook.

    `png` is the last picture, also where nothing shows widgets. Each copy of the road is drawn beside the others.
    """

    def __init__(self, world: World, vehicle: int = 0) -> None:
        """`vehicle`: the place, on the first road, of the one that is looked at closely."""
        self.world, self.vehicle = world, vehicle
        self.png = b""
        self._widget: Any = None
        self._figure = Figure(figsize=(9, 4.4), dpi=80, layout="constrained")
        FigureCanvasAgg(self._figure)
        self._all, self._close = self._figure.subplots(1, 2)
        self._roads = 0
        self.update()

    @property
    def widget(self) -> Any:
        """An `ipywidgets.Image` that follows `update()`."""
        if self._widget is None:
            import ipywidgets

            self._widget = ipywidgets.Image(value=self.png, format="png")
        return self._widget

    def update(self, world: World | None = None) -> None:
        """Draw the world as it is now; usable as `Drive`'s `watch`."""
        world = world or self.world
        state = Vehicles(**{name: values.cpu() for name, values in world.state.items()})
        self._draw_all(state)
        self._draw_close(state, None if world.seen is None else world.seen[0, self.vehicle].cpu().numpy())
        seconds = f"step {world.steps:,}, {world.vehicles:,} vehicles"
        self._figure.suptitle(seconds + (f", {world.crashed} crashed" if world.crashed else ""), fontsize=11)
        written = io.BytesIO()
        self._figure.savefig(written, format="png")
        self.png = written.getvalue()
        if self._widget is not None:
            self._widget.value = self.png

    def _draw_all(self, state: Vehicles) -> None:
        road, axes = self.world.road, self._all
        roads = state.shape[0]
        across = math.ceil(math.sqrt(roads)) if road.closed else 1
        wide = road.length / math.pi * 1.25
        number = np.arange(roads)
        shift = np.stack([number % across * wide, -(number // across) * (wide if road.closed else 60.0)], 1)
        axes.clear()
        axes.set_axis_off()
        for move in shift:
            axes.add_collection(LineCollection(list(_edges(road) + move), colors="0.8", linewidths=0.8))
        points = np.stack([state.x.numpy(), state.y.numpy()], 2) + shift[:, None]
        there = state.present.numpy()
        dots = axes.scatter(*points[there].T, c=state.speed.numpy()[there], s=7, cmap="viridis", vmin=0, vmax=30)
        if self._roads == 0:
            bar = self._figure.colorbar(dots, ax=axes, location="left", shrink=0.7, pad=0.01)
            bar.set_label("speed in m/s")
        axes.plot(*points[0, self.vehicle], "o", mec="crimson", mfc="none", ms=11, mew=1.5)
        axes.set_aspect("equal" if road.closed else "auto")
        axes.margins(0.03)
        self._roads = roads

    def _draw_close(self, state: Vehicles, seen: np.ndarray[Any, Any] | None) -> None:
        axes, middle = self._close, np.array([float(v[0, self.vehicle]) for v in (state.x, state.y)])
        axes.clear()
        axes.add_collection(LineCollection(list(_edges(self.world.road, between=True)), colors="0.8", linewidths=0.8))
        if seen is not None:
            angles = np.arange(len(seen)) * 2 * math.pi / len(seen)
            ends = middle + seen[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
            rays = np.stack([np.broadcast_to(middle, ends.shape), ends], 1)
            met = seen < self.world.reach
            axes.add_collection(LineCollection(list(rays), colors=np.where(met, "crimson", "0.7"), linewidths=0.8))
            axes.plot(*ends[met].T, ".", color="crimson", ms=6)
        boxes, speeds = _rectangles(state, middle)
        drawn = PolyCollection(
            list(boxes), array=speeds, edgecolors="0.2", linewidths=0.6, zorder=3, cmap="viridis", clim=(0, 30)
        )
        axes.add_collection(drawn)
        axes.plot(*middle, "o", color="crimson", ms=4, zorder=4)
        axes.set_xlim(middle[0] - _CLOSE, middle[0] + _CLOSE)
        axes.set_ylim(middle[1] - _CLOSE, middle[1] + _CLOSE)
        axes.set_aspect("equal")
        axes.set_xticks([])
        axes.set_yticks([])
        text = f"{2 * _CLOSE:.0f} m wide" + ("" if seen is None else f": a lidar with {len(seen)} rays")
        label = axes.text(0.02, 0.02, text, transform=axes.transAxes, fontsize=9)
        label.set_path_effects([patheffects.withStroke(linewidth=3, foreground="white")])


class Trace:
    """Where the vehicles of one lane of the first road were, step by step: `note(world)`, then `draw(axes)`."""

    def __init__(self, lane: int = 0) -> None:
        self.lane = lane
        self._noted: list[tuple[float, np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []

    def note(self, world: World, seconds: float) -> None:
        """Write down the lane as it is at `seconds`."""
        state = world.state.of(slice(0, 1))
        station, offset = world.road.local(state.x, state.y)
        there = state.present & (lane_of(world.road, offset) == self.lane)
        self._noted.append((seconds, station[there].cpu().numpy(), state.speed[there].cpu().numpy()))

    def draw(self, axes: Any, length: float, cells: int = 200) -> Any:
        """Time to the right, `length` m of the road upwards, speed by colour; returns the picture, for a colour bar.

        Between two vehicles the speed is interpolated.
        """
        places = (np.arange(cells) + 0.5) * length / cells
        columns = [np.interp(places, *_sorted(station, speed), period=length) for _, station, speed in self._noted]
        axes.set_xlabel("time in s")
        axes.set_ylabel("place on the road in m")
        extent = (self._noted[0][0], self._noted[-1][0], 0.0, length)
        options = {"origin": "lower", "aspect": "auto", "interpolation": "nearest", "vmin": 0, "cmap": "viridis"}
        return axes.imshow(np.stack(columns, 1), extent=extent, **options)

    def speeds(self) -> tuple[float, float]:
        """The slowest and the fastest of the last note, m/s."""
        _, _, speeds = self._noted[-1]
        return float(speeds.min()), float(speeds.max())


def _sorted(station: np.ndarray[Any, Any], speed: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    order = station.argsort()
    return station[order], speed[order]


def _edges(road: Road, between: bool = False) -> np.ndarray[Any, Any]:
    """The edges of the road, and with `between` the lines between lanes: (lines, points, 2), m."""
    numbers: Sequence[float] = range(road.lanes + 1) if between else (0, road.lanes)
    station = torch.linspace(-100 if not road.closed else 0.0, road.length * (1 if road.closed else 3), 400).double()
    lines = [road.position(station, torch.full_like(station, (n - 0.5) * road.lane_width)) for n in numbers]
    edges: np.ndarray[Any, Any] = np.stack([np.stack([x.numpy(), y.numpy()], 1) for x, y in lines])
    return edges


def _rectangles(state: Vehicles, middle: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(corners of the vehicles of the first road near `middle` (vehicles, 4, 2), their speeds)."""
    x, y, heading, speed = (v[0].double().numpy() for v in (state.x, state.y, state.heading, state.speed))
    near = state.present[0].numpy() & (np.hypot(x - middle[0], y - middle[1]) < 2 * _CLOSE)
    c, s = np.cos(heading[near]), np.sin(heading[near])
    corner = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) * np.array([LENGTH, WIDTH]) / 2
    along = corner[None, :, 0] * c[:, None] - corner[None, :, 1] * s[:, None] + x[near, None]
    across = corner[None, :, 0] * s[:, None] + corner[None, :, 1] * c[:, None] + y[near, None]
    return np.stack([along, across], 2), speed[near]
