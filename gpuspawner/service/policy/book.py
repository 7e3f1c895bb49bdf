"""The policy applied: to starts, to changes, to what the form shows, and to who may look at whose session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuspawner.errors import NoRoom, Unavailable
from gpuspawner.fleet.base import CardState
from gpuspawner.fleet.placement import place
from gpuspawner.queue.rules import CLASSES
from gpuspawner.service.auth import Action, Principal
from gpuspawner.service.clock import moment
from gpuspawner.service.policy.decide import Forbidden, Person, Policy
from gpuspawner.service.policy.people import Directory
from gpuspawner.service.policy.schema import QueueClass, Right, Rule
from gpuspawner.service.policy.source import PolicySource
from gpuspawner.share import GPUShare

_RIGHTS: dict[Action, Right] = {
    "read": "telemetry",
    "resize": "resize",
    "hand-over": "hand-over",
    "prioritise": "prioritise",
}


class Nobody:
    """A directory that knows no groups."""

    def person(self, name: str) -> Person:
        """Somebody by name."""
        return Person(name)


@dataclass(frozen=True)
class View:
    """What one person may start: the rules for it, and the policy they stand in."""

    policy: Policy
    rules: Sequence[Rule]

    def why_not(self, share: GPUShare, cards: Sequence[CardState], environment: str | None = None) -> str | None:
        """Why they may start `share` on none of `cards`; None where they may."""
        return None if self.policy.open else self.policy.why_not(self.rules, share, cards, environment)

    def of(self, share: GPUShare, cards: Sequence[CardState], environment: str | None = None) -> list[CardState]:
        """Those of `cards` on which they may start `share`."""
        if self.policy.open:
            return list(cards)
        return self.policy.offered(self.rules, share, cards, environment)

    @property
    def environments(self) -> list[str] | None:
        """Which they may start; None: all."""
        return None if self.policy.open else self.policy.environments(self.rules)


class Book:
    """The policy in force and the people it is about. Thread-safe."""

    def __init__(self, source: PolicySource | None = None, directory: Directory | None = None) -> None:
        self.source = source or PolicySource()
        self.directory = directory or Nobody()

    @property
    def policy(self) -> Policy:
        """The rules in force now."""
        return self.source.current.policy

    def view(self, user: str) -> View:
        """What a person may start now. Raises Unavailable where the hub does not say who they are."""
        policy = self.policy
        return View(policy, () if policy.open else policy.starts(self.directory.person(user), moment()))

    def view_or_none(self, user: str) -> View | None:
        """The same to show; None where everybody may everything, and where the hub does not answer now."""
        if self.policy.open:
            return None
        try:
            return self.view(user)
        except Unavailable:
            return None

    def project_of(self, user: str, server: str) -> str | None:
        """The project that a user's server counts to: the first of the file that is about it. Raises Unavailable."""
        projects = self.source.current.file.projects
        if not projects:
            return None
        groups = self.directory.person(user).groups if any(project.groups for project in projects) else frozenset()
        return next((project.name for project in projects if project.has(user, server, groups)), None)

    def check_start(
        self,
        user: str,
        share: GPUShare,
        environment: str | None,
        cards: Sequence[CardState],
        card: str | None,
        live: int,
    ) -> str | None:
        """Whether a person who has `live` other sessions may start this. The card to name to the fleet: where not
        every card is theirs, the fullest of theirs that fits. Raises Forbidden, NoRoom, Unavailable."""
        view = self.view(user)
        if view.policy.open:
            return card
        matching = [state for state in cards if state.card.is_model(share.model) and card in (None, state.card.uuid)]
        if not matching and share.cards:
            return card  # the fleet says what is not there
        environment = environment or ""  # one that is not named is not known to be allowed
        theirs = view.of(share, matching, environment)
        reason = None if theirs and share.cards else view.why_not(share, matching, environment)
        if reason is not None:
            raise Forbidden(reason, field="share", given=str(share))
        most = view.policy.most_sessions(view.rules)
        if most is not None and live >= most:
            raise Forbidden(
                f"The policy allows {most} session{'s'[: most != 1]} at once; {live} run.", field="sessions"
            )
        if not share.cards or len(theirs) == len(matching) or card is not None:
            return card
        if share.cards > 1:
            raise Forbidden("The policy does not give all cards, and several together need all of them.", field="share")
        try:
            return place(share, theirs)[0]
        except NoRoom as full:
            raise NoRoom(f"{full.message} The policy gives no other cards.", field="share", given=str(share)) from full

    def kinds_of(self, user: str) -> tuple[str, tuple[str, ...]]:
        """The class that a person's work in the queue is of by default, and all that they may ask for, the most urgent
        first. Raises Unavailable."""
        entries = self.source.current.file.queue
        groups = self.directory.person(user).groups if any(entry.groups for entry in entries) else frozenset()
        found = next(
            (
                entry
                for entry in entries
                if user in entry.users or not groups.isdisjoint(entry.groups) or not (entry.users or entry.groups)
            ),
            QueueClass(),  # type: ignore[call-arg, unused-ignore]
        )
        return found.default, CLASSES[CLASSES.index(found.highest or found.default) :]

    def kind_of(self, user: str, asked: str | None) -> str:
        """The class of a person's work in the queue: what was `asked` for, or else their default. Raises Forbidden for
        one more urgent than the policy gives them, Unavailable."""
        default, allowed = self.kinds_of(user)
        if asked is None:
            return default
        if asked not in allowed:
            raise Forbidden(
                f"kind: the policy gives you {', '.join(allowed)}, not {asked}.",
                field="kind",
                given=asked,
                allowed=list(allowed),
            )
        return asked

    def barred(self, user: str, share: GPUShare, environment: str | None, cards: Sequence[CardState]) -> frozenset[str]:
        """The uuids of those of `cards` on which a person may not start `share`. Raises Unavailable."""
        view = self.view(user)
        theirs = {state.card.uuid for state in view.of(share, cards, environment or "")}
        return frozenset(state.card.uuid for state in cards if state.card.uuid not in theirs)

    def check_growth(self, user: str, share: GPUShare, card: Sequence[CardState]) -> None:
        """Whether a person's session on `card` may have `share`. Raises Forbidden, Unavailable."""
        reason = self.view(user).why_not(share, card)
        if reason is not None:
            raise Forbidden(reason, field="share", given=share.amount)

    def may_prioritise(self, caller: Principal, user: str, server: str) -> bool:
        """Whether somebody who is no administrator may say when a user's server goes: only where a rule says so. Raises
        Unavailable."""
        return caller.user is not None and not self.policy.open and self.may(caller, "prioritise", user, server)

    def may(self, caller: Principal, action: Action, user: str, server: str) -> bool:
        """Whether a caller may do `action` to a user's server, by their scopes and, where it is about a right, by the
        policy. Raises Unavailable."""
        scoped = caller.may(action, user, server)
        right = _RIGHTS.get(action)
        policy = self.policy
        if policy.open or right is None or caller.user is None or caller.may("admin", user, server):
            return scoped
        # a rule over others is for people with a token of their own, not for what runs in their servers
        if not scoped and not caller.may_all_of_own(action):
            return False
        person = self.directory.person(caller.user)
        return right in policy.rights(person, user, lambda name: self.directory.person(name).groups, moment())
