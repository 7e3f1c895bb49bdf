"""Traces: who wanted what when. One JSON object per line; the first says which cards there are.

    {"trace": 1, "cards": [{"model": "h100-80gb", "count": 8, "node": "n1"}]}
    {"session": "j1", "user": "ann", "kind": "training", "share": "1/2", "at": 12.5, "seconds": 5400}

`at` and `seconds` are seconds; `seconds` is how long the work takes with its whole share. `told` is what its owner said
of that beforehand, and `deadline` (seconds, as `at`) when it must be done; both may be missing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpuspawner.errors import InvalidInput
from gpuspawner.queue.board import CardRoom, Waiting
from gpuspawner.share import MAX_CARDS, GPUShare

_T = TypeVar("_T", bound=BaseModel)
Kind = Literal["inference-urgent", "interactive", "training", "batch"]
_KINDS: tuple[Kind, ...] = get_args(Kind)
_Seconds = Annotated[float, Field(ge=0, le=10**10, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1, max_length=255)]


def _a_card(text: str) -> str:
    if not GPUShare.parse(text).cards:
        raise ValueError("a share of a card is needed")
    return text


class Cards(BaseModel):
    """Cards of one model in one node."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: _Name = "h100-80gb"
    count: Annotated[int, Field(ge=1, le=MAX_CARDS)] = 8
    node: str = "n1"


class Head(BaseModel):
    """The first line."""

    model_config = ConfigDict(extra="forbid", strict=True)
    trace: Literal[1]
    cards: Annotated[list[Cards], Field(min_length=1)]


class Job(BaseModel):
    """One line: somebody wants a share."""

    model_config = ConfigDict(extra="forbid", strict=True)
    session: _Name
    user: _Name
    kind: Kind
    share: Annotated[str, AfterValidator(_a_card)]
    at: _Seconds
    seconds: _Seconds
    told: _Seconds | None = None
    deadline: _Seconds | None = None

    @model_validator(mode="after")
    def _in_time(self) -> Job:
        if self.deadline is not None and self.deadline < self.at:
            raise ValueError("deadline: before `at`")
        return self

    def waiting(self) -> Waiting:
        """As it joins the queue."""
        return Waiting(
            self.session, self.user, self.kind, GPUShare.parse(self.share), self.at, self.told, self.deadline
        )


@dataclass(frozen=True)
class Trace:
    """Cards, and jobs by the time at which they come."""

    cards: tuple[Cards, ...]
    jobs: tuple[Job, ...]

    def rooms(self) -> list[CardRoom]:
        """The cards, all of them free."""
        return [
            CardRoom(f"{each.node}/{each.model}/{number}", each.model, each.node)
            for each in self.cards
            for number in range(each.count)
        ]

    def lines(self) -> Iterator[str]:
        """The trace as text, line by line."""
        yield json.dumps({"trace": 1, "cards": [each.model_dump() for each in self.cards]})
        for job in self.jobs:
            yield job.model_dump_json(exclude_none=True)


def read(path: Path) -> Trace:
    """The trace in a file. Raises InvalidInput, which names the line and the field."""
    try:
        with path.open(encoding="utf-8") as file:
            return parse(file)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"trace: {path} cannot be read: {error}.", field="trace", given=str(path)) from error


def parse(lines: Iterable[str]) -> Trace:
    """The trace in lines of text. Raises InvalidInput, which names the line and the field."""
    head: Head | None = None
    jobs: dict[str, Job] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if head is None:
            head = _read(Head, line, number)
            continue
        job = _read(Job, line, number)
        if job.session in jobs:
            raise _wrong(number, "session", job.session, "another name for each")
        jobs[job.session] = job
    if head is None:
        raise InvalidInput("trace: it is empty. Its first line names the cards.", field="trace")
    cards = {(each.node, each.model) for each in head.cards}
    if len(cards) != len(head.cards):
        raise _wrong(1, "cards", "a node and model twice", "each once")
    return Trace(tuple(head.cards), tuple(sorted(jobs.values(), key=lambda job: job.at)))


def _read(kind: type[_T], line: str, number: int) -> _T:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the line"
        raise _wrong(number, field, first.get("input"), first["msg"]) from error


def _wrong(number: int, field: str, given: Any, allowed: str) -> InvalidInput:
    shown = repr(given)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return InvalidInput(f"line {number}, {field}: {shown} is not allowed: {allowed}.", field=field, given=shown)


def synthetic(jobs: int, cards: int = 16, *, seed: int = 1, load: float = 1.1) -> Trace:
    """A trace made up by chance: a mix of all classes that asks for `load` times what the cards can give.

    Nobody measured this mix; it serves to compare rules on the same input.
    """
    chance = random.Random(seed)
    made: list[tuple[Kind, str, float, float | None]] = []
    asked = 0.0
    for _ in range(jobs):
        kind = chance.choices(_KINDS, (10, 45, 25, 20))[0]
        share, seconds = _wish(kind, chance)
        made.append((kind, share, seconds, chance.uniform(1, 4) * seconds + 300 if chance.random() < 0.2 else None))
        asked += GPUShare.parse(share).eighths * seconds
    span = asked / (cards * 8 * load)
    ats = sorted(round(chance.uniform(0, span), 3) for _ in range(jobs))
    found = []
    for number, (at, (kind, share, seconds, slack)) in enumerate(zip(ats, made, strict=True)):
        told = round(seconds * chance.uniform(0.7, 1.5), 3) if chance.random() < 0.6 else None
        deadline = None if slack is None else round(at + slack, 3)
        job = Job(
            session=f"j{number}",
            user=f"u{int(chance.paretovariate(1.2)) % 40}",
            kind=kind,
            share=share,
            at=at,
            seconds=seconds,
            told=told,
            deadline=deadline,
        )
        found.append(job)
    nodes = [Cards(count=min(8, cards - first), node=f"n{first // 8 + 1}") for first in range(0, cards, 8)]
    return Trace(tuple(nodes), tuple(found))


def _wish(kind: Kind, chance: random.Random) -> tuple[str, float]:
    shares, weights, middle = {
        "inference-urgent": (("1/8", "1/4", "1/2"), (5, 3, 2), 120.0),
        "interactive": (("1/8", "1/4", "1/2", "1"), (4, 3, 2, 1), 2700.0),
        "training": (("1/2", "1", "2", "4"), (4, 4, 2, 1), 10800.0),
        "batch": (("1/4", "1/2", "1"), (3, 4, 3), 5400.0),
    }[kind]
    return chance.choices(shares, weights)[0], round(min(middle * 8, chance.lognormvariate(0, 0.8) * middle), 3)
