"""What policies made of a trace, as a picture: how much of the cards was held when, and who waited how long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuspawner.errors import InvalidInput, Unavailable
from gpuspawner.queue.rules import CLASSES

if TYPE_CHECKING:
    from gpuspawner.queue.replay import Result

#: The kinds of picture that can be written, by the file's name.
SUFFIXES = (".svg", ".png", ".pdf")
#: The part held is drawn as the mean over this many stretches of the time.
STRETCHES = 120
#: Told apart by people who cannot tell red from green, too: Okabe and Ito, "Color Universal Design" (2008).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MINUTES = (1, 10, 60, 600, 1440, 14400)
_MINUTES_SAID = ("1 min", "10 min", "1 h", "10 h", "1 d", "10 d")


def check(path: Path) -> None:
    """Raises InvalidInput where nothing can be written there, and Unavailable without matplotlib: before the work."""
    if path.suffix not in SUFFIXES:
        raise InvalidInput(
            f"plot: {path.name!r} is not allowed. Allowed: a name that ends in {', '.join(SUFFIXES)}.",
            field="plot",
            given=path.name,
        )
    if not path.absolute().parent.is_dir():
        raise InvalidInput(f"plot: there is no folder {path.absolute().parent}.", field="plot", given=str(path))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Unavailable("Pictures need matplotlib: pip install 'gpuspawner[plots]'.") from None


def means(held: Sequence[tuple[float, int]], until: float, stretches: int = STRETCHES) -> list[float]:
    """The mean number of eighths held in each of so many equal stretches of the time from 0 to `until` seconds; `held`
    says how many from when on, in order."""
    import numpy

    times = numpy.array([0.0, *(when for when, _ in held), max(until, held[-1][0] if held else 0.0)])
    eighths = numpy.array([0, *(count for _, count in held)])
    held_so_far = numpy.concatenate([[0.0], numpy.cumsum(eighths * numpy.diff(times))])
    borders = numpy.linspace(0, until, stretches + 1)
    found: list[float] = (numpy.diff(numpy.interp(borders, times, held_so_far)) * stretches / until).tolist()
    return found


def draw(results: Sequence[Result], cards: int, until: float, path: Path) -> None:
    """Write the picture. `cards`: how many there are; `until`: seconds until the last one came."""
    from matplotlib.figure import Figure

    until = max(until, 1.0)
    figure = Figure(figsize=(10, 9), layout="constrained")
    above, *below = figure.subplot_mosaic(
        [["held", "held"], [CLASSES[0], CLASSES[1]], [CLASSES[2], CLASSES[3]]], height_ratios=[1.2, 1, 1]
    ).values()
    for result, colour in zip(results, _COLOURS, strict=False):
        parts = [each / (8 * cards) * 100 for each in means(result.held, until)]
        times = [(index + 0.5) * until / STRETCHES / 86400 for index in range(STRETCHES)]
        above.plot(times, parts, color=colour, label=f"{result.policy}: {result.utilisation:.1%}", linewidth=1.4)
    above.set(ylim=(0, 101), xlim=(0, until / 86400), xlabel="days", ylabel="held, percent of all cards")
    above.set_title("How much of the cards was held", loc="left", fontweight="bold")
    above.legend(loc="lower right", ncols=2, frameon=False)
    for axes, kind in zip(below, CLASSES, strict=True):
        _waits(axes, kind, results)
    try:
        figure.savefig(path)
    except OSError as error:
        raise InvalidInput(f"plot: {path} cannot be written: {error}.", field="plot", given=str(path)) from error


def _waits(axes: Any, kind: str, results: Sequence[Result]) -> None:
    """Which part of a class waited longer than what."""
    count = 0
    for result, colour in zip(results, _COLOURS, strict=False):
        minutes = [max(1.0, each / 60) for each in result.waited[kind]]
        count = max(count, len(minutes))
        left = [100 * (1 - number / len(minutes)) for number in range(len(minutes) + 1)]
        axes.step([1.0, *minutes], left, where="post", color=colour, label=result.policy, linewidth=1.4)
    axes.set_xscale("log")
    axes.set_xticks(_MINUTES, _MINUTES_SAID)
    axes.minorticks_off()
    axes.set(ylim=(0, 101), xlim=(1, _MINUTES[-1]), ylabel="waited longer, percent")
    axes.set_title(f"{kind} ({count})", loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
