"""What the classes of work may and must, and the policies that a replay compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from gpuspawner.errors import InvalidInput
from gpuspawner.share import FRACTIONS

#: The classes of work, the most urgent first.
CLASSES = ("inference-urgent", "interactive", "training", "batch")


@dataclass(frozen=True)
class ClassRules:
    """What sessions of one class may be asked for when a more urgent class needs room.

    `floor`: the eighths that one keeps while it runs. `shrinks`, `parks`: whether it is made smaller, or checkpointed
    and stopped. `notice_seconds`: between the notice and the parking. `age_seconds`: who has waited so long counts as
    one class higher than it is, though never as the most urgent; 0: never.
    """

    floor: int = 1
    shrinks: bool = True
    parks: bool = False
    notice_seconds: float = 60.0
    age_seconds: float = 43200.0

    def __post_init__(self) -> None:
        if self.floor not in FRACTIONS:
            raise InvalidInput(
                f"floor: {self.floor!r} is not allowed. Allowed: {', '.join(map(str, FRACTIONS))}.",
                field="floor",
                given=self.floor,
                allowed=list(FRACTIONS),
            )
        for name in ("notice_seconds", "age_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                given = getattr(self, name)
                raise InvalidInput(f"{name}: {given!r} is not allowed. Allowed: 0 or more.", field=name, given=given)


def _classes() -> Mapping[str, ClassRules]:
    return MappingProxyType(
        {
            "inference-urgent": ClassRules(shrinks=False, age_seconds=0),
            "interactive": ClassRules(),
            "training": ClassRules(parks=True),
            "batch": ClassRules(parks=True, notice_seconds=15.0),
        }
    )


@dataclass(frozen=True)
class Rules:
    """How the queue decides.

    `order`: by class, then deadline, then recent use, then time of waiting; or by time of waiting alone. `resizes`,
    `parks`, `backfills`, `ages`, `fair` switch parts off for all classes. `window`: so many who cannot start now are
    looked past for somebody who can. `hold_seconds`: a card is kept for who has waited so long and fits nowhere.
    `safe_seconds`: so long nobody is parked who has waited itself up a class, so that it gets on. `half_life_seconds`:
    after which past use counts half.
    """

    name: str = "standard"
    order: Literal["class", "fifo"] = "class"
    resizes: bool = True
    parks: bool = True
    backfills: bool = True
    ages: bool = True
    fair: bool = True
    window: int = 32
    hold_seconds: float = 900.0
    safe_seconds: float = 1800.0
    half_life_seconds: float = 86400.0
    classes: Mapping[str, ClassRules] = field(default_factory=_classes)

    def __post_init__(self) -> None:
        if set(self.classes) != set(CLASSES):
            raise InvalidInput(
                f"classes: {sorted(self.classes)} is not allowed. Needed: {', '.join(CLASSES)}.",
                field="classes",
                given=sorted(self.classes),
                allowed=list(CLASSES),
            )

    def rank(self, kind: str, waited: float = 0.0) -> int:
        """The class's place among CLASSES, 0 the most urgent, after `waited` seconds."""
        own = CLASSES.index(kind)
        age = self.classes[kind].age_seconds
        if not self.ages or not age or own == 0:
            return own
        return max(1, own - int(waited / age))


STANDARD = Rules()
#: One line, nobody gives way.
FIFO = Rules(name="fifo", order="fifo", resizes=False, parks=False, backfills=False, ages=False, fair=False)
#: Classes only; what runs stays as it is.
STRICT = replace(FIFO, name="strict", order="class")
#: All but shrinking: what is in the way is parked.
NO_RESIZE = Rules(name="no-resize", resizes=False)
POLICIES = {rules.name: rules for rules in (STANDARD, NO_RESIZE, STRICT, FIFO)}
