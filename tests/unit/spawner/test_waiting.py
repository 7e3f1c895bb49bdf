"""A start that waits in the queue: what its user is told, and that neither a timeout nor an absent service ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from traitlets import Integer

from gpuspawner.share import GPUShare
from gpuspawner.spawner import obtain
from gpuspawner.spawner.errors import Refused, ServiceDown
from gpuspawner.spawner.obtain import obtain_session
from gpuspawner.spawner.options import Choice
from gpuspawner.spawner.shared import SharedSpawner
from gpuspawner.spawner.steps import Steps

WANTED = Choice(GPUShare(4), wait=True)


def place(number: int | None, state: str = "waiting", **more: Any) -> dict[str, Any]:
    return {"id": "s-1", "state": state, "place": number, "reason": "All of it is in use now.", **more}


class Service:
    """Answers what it is given, one after the other; what is an error is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Any]] = []
        self.third: asyncio.Event | None = None

    def _next(self, what: str, given: Any) -> Any:
        self.asked.append((what, given))
        if len(self.asked) == 3 and self.third is not None:
            self.third.set()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def start(self, *_: Any, **more: Any) -> Any:
        return self._next("start", more.get("wait"))

    async def place(self, session: str) -> Any:
        return self._next("place", session)


class Told(Steps):
    """Everything that was said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def take(self, part: str, progress: int, message: str, *, waiting: bool = False) -> None:
        self.said.append(message)
        super().take(part, progress, message, waiting=waiting)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_POLL", "_POLL_FAR"):
        monkeypatch.setattr(obtain, name, 0.0)


STARTED = ({"id": "s-1", "state": "starting"}, {"argv_prefix": []})


async def test_who_waits_is_told_where_it_stands_and_starts_when_it_is_its_turn() -> None:
    steps = Told()
    service = Service(
        (place(2), None),
        place(1, expected_low_seconds=0, expected_high_seconds=600, waited_seconds=0),
        ServiceDown(),
        place(None, "placed"),
        STARTED,
    )
    found = await obtain_session(service, "ann", "", WANTED, "1/4", steps, longest_wait=60)  # type: ignore[arg-type]
    assert found == STARTED
    assert service.asked == [("start", True), *[("place", "s-1")] * 3, ("start", True)]
    assert steps.said[1:3] == [
        "Number 2 in the queue. All of it is in use now. For how long is not known.",
        "Number 1 in the queue. All of it is in use now. Probably up to 10 minutes.",
    ]
    assert steps.said[3].endswith("Your place in the queue is kept.")


async def test_who_was_taken_out_of_the_queue_hears_why() -> None:
    service = Service((place(1), None), Refused(404, "Its place in the queue was given up by ann.", code="not_found"))
    with pytest.raises(Refused, match="given up by ann") as refused:
        await obtain_session(service, "ann", "", WANTED, "1/4", Steps(), longest_wait=60)  # type: ignore[arg-type]
    assert (refused.value.status_code, refused.value.code) == (409, "left_queue")


async def test_waiting_has_an_end_and_where_the_hub_wants_none_nobody_waits() -> None:
    service = Service((place(1), None), *[place(1)] * 1000)
    with pytest.raises(Refused, match="did not become free in time"):
        await obtain_session(service, "ann", "", WANTED, "1/4", Steps(), longest_wait=0.01)  # type: ignore[arg-type]
    service = Service(STARTED)
    await obtain_session(service, "ann", "", WANTED, "1/4", Steps())  # type: ignore[arg-type]
    assert service.asked == [("start", None)]


async def test_a_cancelled_wait_ends_at_once() -> None:
    service = Service((place(1), None), *[place(1)] * 100_000)
    service.third = asyncio.Event()
    waiting = asyncio.ensure_future(
        obtain_session(service, "ann", "", WANTED, "1/4", Steps(), longest_wait=60)  # type: ignore[arg-type]
    )
    await service.third.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


class Slow(SharedSpawner):
    """Waits for longer than it may take to start."""

    start_timeout = Integer(1)

    def __init__(self, wanted: Choice, waits: float, starts: float) -> None:
        super().__init__()
        self.wanted = wanted
        self.took = waits, starts

    def start(self) -> Awaitable[str]:
        return self._patient(self._begin())

    async def _begin(self) -> str:
        self.seen = self.start_timeout
        await asyncio.sleep(self.took[0])
        async with self._own_time():
            await asyncio.sleep(self.took[1])
        return "ready"


async def as_jupyterhub(spawner: Slow) -> str:
    return await asyncio.wait_for(spawner.start(), timeout=spawner.start_timeout)


async def test_the_time_in_the_queue_does_not_count_as_that_of_the_start() -> None:
    patient = Slow(WANTED, 1.2, 0.0)
    assert await as_jupyterhub(patient) == "ready"
    assert (patient.seen, patient.start_timeout) == (1, 1), "KubeSpawner sees what was configured"
    for spawner in (Slow(Choice(GPUShare(4)), 1.2, 0.0), Slow(WANTED, 0.0, 1.2)):
        with pytest.raises(TimeoutError):
            await as_jupyterhub(spawner)
