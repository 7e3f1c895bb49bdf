"""The queue over REST."""

from typing import Annotated, cast

from fastapi import APIRouter, Depends, Query

from gpuspawner.errors import NotAllowed, NotFound
from gpuspawner.service import schemas
from gpuspawner.service.auth import Authenticator, Principal, signed_in
from gpuspawner.service.sessions import SessionService
from gpuspawner.service.store import LIVE
from gpuspawner.service.views import iso
from gpuspawner.service.waiting.telling import Place


def queue_routes(sessions: SessionService, authenticator: Authenticator) -> APIRouter:
    """GET /queue and GET /queue/ID."""
    router = APIRouter()
    Caller = Annotated[Principal, Depends(signed_in(authenticator))]

    def may_see(caller: Principal, place: Place) -> bool:
        return sessions.book.may(caller, "read", place.row.user, place.row.server)

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
            shown(place)
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
                return shown(found)
        elif row is not None and live is not None and live.state in LIVE:
            found = Place(row, None, "It has its share.", max(0.0, (live.created_ms - row.since_ms) / 1000))
            if may_see(caller, found):
                return shown(found)
        why = sessions.queue.why_gone(session) if caller.hub else None
        raise NotFound(why or "There is nobody of that name in the queue.", field="session", given=session)

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
    )
