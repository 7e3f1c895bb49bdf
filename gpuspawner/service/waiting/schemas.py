"""The REST API's bodies about the queue and parking."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StrictInt, StrictStr

Kind = Literal["inference-urgent", "interactive", "training", "batch"]


class Strict(BaseModel):
    """A request body: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class Parking(BaseModel):
    """A session that was asked to save, or is parked. `by`: the administrator who asked; null: more urgent work, or a
    budget."""

    session: str = Field(description="the one that was asked")
    state: Literal["noticed", "saved", "stopping", "parked", "failed", "silent", "void"] = Field(
        description="`failed`: it could not save; `silent`: it said nothing in time; `void`: taken back. These go on"
    )
    by: str | None
    reason: str
    since: str
    due: str = Field(description="until when it must have said that all is saved")
    said: str | None = Field(description="what it has saved, or why not")
    back: str | None = Field(description="it does not come back before that; null: as soon as there is room")
    card: str | None = Field(description="the card on which it comes back; null: any")


class Waiting(BaseModel):
    """Somebody in the queue. `id` is that of the session to be.

    `expected_low_seconds` to `expected_high_seconds` is how long it will wait from when it began, as far as that is
    known: four of five waits were within what was said. Null where it is not known.
    """

    id: str
    user: str
    server: str
    state: Literal["waiting", "placed"] = Field(description="`placed`: it has its share; ask POST /sessions again")
    share: str
    kind: Kind
    place: int | None = Field(description="1 is the next; null where it cannot be served at the moment")
    reason: str
    since: str
    waited_seconds: float
    expected_low_seconds: int | None
    expected_high_seconds: int | None
    deadline: str | None
    in_time: bool | None = Field(description="whether the deadline can be met; null where that is not known")
    changed_by: str | None = Field(default=None, description="who has set its class or deadline since it came")
    changed_reason: str | None = Field(default=None, description="why")
    parked: Parking | None = Field(default=None, description="of one that ran before and was parked")
    changeable: bool = Field(default=False, description="whether whoever asks may set its class and deadline")


class QueueChange(Strict):
    """Another class or deadline for somebody who waits; what is left out stays."""

    kind: Kind | None = Field(default=None, description="its class from now on")
    deadline: AwareDatetime | None = Field(default=None, description="when it must be done; null: no deadline")
    reason: StrictStr = Field(min_length=1, max_length=255, description="for the audit, and for whoever waits")


class Queue(BaseModel):
    """Who waits, the next first. `length`: how many in all, others included."""

    queue: list[Waiting]
    length: int


class Waits(BaseModel):
    """A start that has to wait (202)."""

    waiting: Waiting


class ParkRequest(Strict):
    """Have a session saved and stopped. It does not come back before `rest_minutes`, and on `card` where one is
    named."""

    reason: StrictStr = Field(min_length=1, max_length=255, description="for the audit, and for its user")
    rest_minutes: StrictInt = Field(default=0, ge=0, le=720, description="0: it comes back as soon as there is room")
    card: StrictStr | None = Field(default=None, max_length=96, description="uuid; null: any")


class CardPlace(BaseModel):
    """A card to which a session could move. `reason`: why it cannot; null where it can."""

    card: str
    node: str
    index: int
    model: str
    free_eighths: int
    reason: str | None


class CardPlaces(BaseModel):
    """Cards, those where there is a place first."""

    places: list[CardPlace]


class ParkingAnswer(Strict):
    """What a session says to its notice. `said`: what was saved where, or why it was not."""

    notice: StrictStr = Field(min_length=1, max_length=32)
    outcome: Literal["saved", "failed"]
    said: StrictStr = Field(max_length=1000)


class ParkingState(BaseModel):
    """What became of a notice."""

    notice: str
    state: str
