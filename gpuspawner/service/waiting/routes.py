"""The queue over REST."""

import time
from datetime import datetime
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query, Request

from gpuspawner.errors import InvalidInput, NotAllowed, NotFound
from gpuspawner.service.auth import Authenticator, Principal, signed_in
from gpuspawner.service.cordons import THIS_MACHINE
from gpuspawner.service.schemas import Session
from gpuspawner.service.sessions import SessionService
from gpuspawner.service.store import LIVE
from gpuspawner.service.tables import SessionRow
from gpuspawner.service.views import iso
from gpuspawner.service.waiting import moves, schemas
from gpuspawner.service.waiting.entries import Entry
from gpuspawner.service.waiting.parker import Parker, reason_for
from gpuspawner.service.waiting.parkings import Parking
from gpuspawner.service.waiting.telling import Place


def queue_routes(sessions: SessionService, authenticator: Authenticator) -> APIRouter:
    """The queue, and of a session /parking, /park and /places."""
    router = APIRouter()
    Caller = Annotated[Principal, Depends(signed_in(authenticator))]

    def may_see(caller: Principal, place: Place) -> bool:
        return sessions.book.may(caller, "read", place.row.user, place.row.server)

    def may_change(caller: Principal, row: Entry) -> bool:
        return caller.may("admin", row.user, row.server) or sessions.book.may_prioritise(caller, row.user, row.server)

    def told(caller: Principal, place: Place) -> schemas.Waiting:
        found = shown(place)
        found.changeable = place.row.state == "waiting" and may_change(caller, place.row)
        return found

    @router.get("/queue")
    def queue(
        caller: Caller,
        user: Annotated[str | None, Query(max_length=255)] = None,
        server: Annotated[str | None, Query(max_length=255)] = None,
    ) -> schemas.Queue:
        """Who waits for a share, the next first: of those whom the caller may see."""
        if not caller.may("read"):
            raise NotAllowed("Your token lacks the scope custom:gpuspawner:read.")
        places = sessions.queue.outlook.places() if sessions.leadership.leads else sessions.queue.outlook.stored()
        found = [
            told(caller, place)
            for place in places
            if user in (None, place.row.user) and server in (None, place.row.server) and may_see(caller, place)
        ]
        return schemas.Queue(queue=found, length=len(places))

    @router.get("/queue/{session}")
    def place(caller: Caller, session: str) -> schemas.Waiting:
        """Where somebody stands. When the hub asks, the place is kept: it is given away to nobody who is not asked
        for."""
        sessions.must_lead()
        row = sessions.queue.entries.get(session)
        live = None if row is not None and row.state == "waiting" else sessions.store.session(session[:32])
        if row is not None and row.state == "waiting":
            found = sessions.queue.outlook.place(row)
            if may_see(caller, found):
                if caller.hub:
                    sessions.queue.seen(session)
                return told(caller, found)
        elif row is not None and live is not None and live.state in LIVE:
            found = Place(row, None, "It has its share.", max(0.0, (live.created_ms - row.since_ms) / 1000))
            if may_see(caller, found):
                return shown(found)
        why = sessions.queue.why_gone(session) if caller.hub else None
        raise NotFound(why or "There is nobody of that name in the queue.", field="session", given=session)

    @router.patch("/queue/{session}")
    def change(session: str, body: schemas.QueueChange, caller: Caller, request: Request) -> schemas.Waiting:
        """Set the class or the deadline of somebody who waits, or both. Administrators, and whom the policy gives the
        right `prioritise`, as far as the policy allows the class to who waits."""
        sessions.must_lead()
        row = sessions.queue.entries.get(session)
        if row is None or not sessions.book.may(caller, "read", row.user, row.server):
            raise NotFound("There is nobody of that name in the queue.", field="session", given=session)
        request.scope["gpuspawner.user"] = row.user  # for the audit
        if not caller.may("admin", row.user, row.server):
            if not may_change(caller, row):
                raise NotAllowed("Only administrators, and whom the policy allows it, say who goes first.")
            if body.kind is not None:
                sessions.book.kind_of(row.user, body.kind)
        values: dict[str, Any] = {}
        if body.kind is not None:
            values["kind"] = body.kind
        if "deadline" in body.model_fields_set:
            values["deadline_ms"] = due(body.deadline)
        if not values:
            raise InvalidInput("kind: missing.", field="kind", given=None, allowed="a class, a deadline, or both")
        row = sessions.queue.prioritise(session, caller.name, body.reason, **values)
        if row.state != "waiting":
            return told(caller, Place(row, None, "It has its share.", 0.0))
        return told(caller, sessions.queue.outlook.place(row))

    def for_admin(caller: Principal, session: str) -> SessionRow:
        row = sessions.store.session(session) if len(session) <= 32 else None
        if row is None or not sessions.book.may(caller, "read", row.user, row.server):
            raise NotFound("There is no such session, or you may not see it.", field="session", given=session)
        if not caller.may("admin", row.user, row.server):
            raise NotAllowed("Only administrators park and move sessions.")
        return row

    @router.post("/sessions/{session}/park", status_code=202)
    def park(session: str, body: schemas.ParkRequest, caller: Caller) -> schemas.Parking:
        """Ask a session to save, stop it once it has said that it is saved, and let it come back by itself: not before
        `rest_minutes`, and on `card`, where one is named. Administrators only."""
        row = for_admin(caller, session)
        sessions.must_lead()
        found = sessions.queue.park(row, caller.name, body.reason, 60.0 * body.rest_minutes, body.card)
        return parking_shown(found)

    @router.delete("/sessions/{session}/park")
    def release(session: str, caller: Caller) -> schemas.Parking:
        """Take that back: the notice is void, or what is parked comes back as soon as there is room. Administrators."""
        row = for_admin(caller, session)
        sessions.must_lead()
        return parking_shown(sessions.queue.release(row.id))

    @router.get("/sessions/{session}/places")
    def places(session: str, caller: Caller) -> schemas.CardPlaces:
        """To which cards a session could move, and why not to the others. Administrators only."""
        row = for_admin(caller, session)
        view, grant = sessions.book.view(row.user), sessions.fleet.grant(row.id)
        found = moves.places(sessions.queue.asked_share(row), grant, view, sessions.fleet.cards())
        return schemas.CardPlaces(
            places=[
                schemas.CardPlace(
                    card=state.card.uuid,
                    node=state.node or THIS_MACHINE,
                    index=state.card.index,
                    model=state.card.model,
                    free_eighths=state.free_eighths,
                    reason=reason,
                )
                for state, reason in found
            ]
        )

    @router.put("/sessions/{session}/parking")
    def answer(session: str, body: schemas.ParkingAnswer, caller: Caller) -> schemas.ParkingState:
        """What a session says to the notice that it was given: that it is saved, or why it is not."""
        sessions.must_lead()
        row = sessions.store.session(session) if len(session) <= 32 else None
        if row is None or not caller.may("activity", row.user, row.server):
            raise NotFound("There is no such session, or you may not see it.", field="session", given=session)
        found = sessions.queue.answer(row.id, body.notice, body.outcome == "saved", body.said)
        return schemas.ParkingState(notice=found.id, state=found.state)

    return router


def parking_shown(row: Parking) -> schemas.Parking:
    """What is under way with a session that was asked to save, as the API shows it."""
    return schemas.Parking(
        session=row.session,
        state=cast(Any, row.state),
        by=row.asked_by,
        reason=reason_for(row),
        since=iso(row.noticed_ms),
        due=iso(row.due_ms),
        said=row.said,
        back=None if row.back_ms is None else iso(row.back_ms),
        card=row.card,
    )


def add_parking(shown: Session, row: SessionRow, parker: Parker) -> Session:
    """The same with what is under way with it."""
    parking = parker.rows.get(row.id) or parker.rows.missed(row.id)
    shown.parking = None if parking is None else parking_shown(parking)
    shown.park_reason = parker.why_not(row)
    return shown


def due(deadline: datetime | None) -> int | None:
    """A deadline in milliseconds since the epoch. Raises InvalidInput for one that is over."""
    if deadline is None:
        return None
    if deadline.timestamp() <= time.time():
        given = deadline.isoformat()
        raise InvalidInput("deadline: it is over.", field="deadline", given=given, allowed="a time to come")
    return round(deadline.timestamp() * 1000)


def shown(place: Place) -> schemas.Waiting:
    """Somebody in the queue as the API shows it."""
    row, expected = place.row, place.expected
    return schemas.Waiting(
        id=row.id,
        user=row.user,
        server=row.server,
        state="waiting" if row.state == "waiting" else "placed",
        share=row.share,
        kind=cast(schemas.Kind, row.kind),
        place=place.place,
        reason=place.reason,
        since=iso(row.since_ms),
        waited_seconds=round(place.waited, 1),
        expected_low_seconds=None if expected is None else round(expected.low),
        expected_high_seconds=None if expected is None else round(expected.high),
        deadline=None if row.deadline_ms is None else iso(row.deadline_ms),
        in_time=place.in_time,
        parked=None if place.parked is None else parking_shown(place.parked),
        changed_by=row.changed_by,
        changed_reason=row.changed_why,
    )
