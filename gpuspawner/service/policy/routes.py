"""The policy over REST: what is in force, and what it means for somebody."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path

from gpuspawner.errors import NotAllowed
from gpuspawner.fleet.base import Fleet
from gpuspawner.service import schemas
from gpuspawner.service.auth import Authenticator, Principal, signed_in
from gpuspawner.service.policy.book import Book
from gpuspawner.service.policy.schema import RIGHTS
from gpuspawner.service.sessions import SessionService
from gpuspawner.share import EIGHTHS_PER_CARD, FRACTIONS, GPUShare


def policy_routes(sessions: SessionService, authenticator: Authenticator) -> APIRouter:
    """GET /policy and GET /policy/users/NAME."""
    router = APIRouter()
    Caller = Annotated[Principal, Depends(signed_in(authenticator))]

    @router.get("/policy")
    def policy(who: Caller) -> schemas.PolicyState:
        """The policy in force. Administrators only."""
        if not who.may("admin"):
            raise NotAllowed("Only administrators may see the whole policy.")
        source = sessions.book.source
        now = source.current
        return schemas.PolicyState(
            digest=now.digest or None,
            problem=source.problem,
            restricted=not now.policy.open,
            rules=[rule.name for rule in now.policy.rules or ()],
            currency=now.prices.currency,
        )

    @router.get("/policy/users/{user}")
    def explain(who: Caller, user: Annotated[str, Path(max_length=255)]) -> schemas.Explained:
        """What the policy means for a user: their own name, or for administrators any."""
        if user != who.user and not who.may("admin", user):
            raise NotAllowed("Only administrators may see what the policy means for other users.")
        return explained(sessions.book, sessions.fleet, user)

    return router


def explained(book: Book, fleet: Fleet, user: str) -> schemas.Explained:
    """What the policy means for a user on the cards of a fleet."""
    person, view, now = book.directory.person(user), book.view(user), datetime.now(UTC)
    policy = view.policy
    rights = list(RIGHTS) if policy.open else sorted(policy.rights(person, user, lambda name: person.groups, now))
    starts: list[dict[str, Any]] = [_start(GPUShare(0), "", view.why_not(GPUShare(0), ()))]
    states = fleet.cards()
    for model in sorted({state.card.model for state in states}):
        cards = [state for state in states if state.card.model == model]
        for eighths in (*FRACTIONS, 2 * EIGHTHS_PER_CARD):
            share = GPUShare(eighths)
            if share.cards <= len(cards):
                starts.append(_start(share, model, view.why_not(share, cards)))
    return schemas.Explained(
        user=user,
        groups=sorted(person.groups),
        roles=sorted(person.roles),
        restricted=not policy.open,
        rules=[rule.model_dump(mode="json", by_alias=True, exclude_none=True) for rule in policy.rules_of(person, now)],
        rights=rights,
        sessions=None if policy.open else policy.most_sessions(view.rules),
        environments=view.environments,
        starts=starts,
    )


def _start(share: GPUShare, model: str, reason: str | None) -> dict[str, Any]:
    return {"share": share.amount, "model": model, "allowed": reason is None, "reason": reason}
