"""What a policy means for a person. Pure: no I/O, no clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpuspawner.errors import NotAllowed
from gpuspawner.fleet.base import CardState
from gpuspawner.service.policy.schema import Allow, PolicyFile, Right, Rule
from gpuspawner.share import GPUShare


@dataclass(frozen=True)
class Person:
    """Somebody of JupyterHub, with the groups and roles that it knows of them."""

    name: str
    groups: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()


class Forbidden(NotAllowed):
    """The policy does not allow it (403)."""

    code = "policy"


@dataclass(frozen=True)
class Policy:
    """The rules in force. With `rules` None everybody may everything."""

    rules: tuple[Rule, ...] | None = None
    labels: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, file: PolicyFile) -> Policy:
        """The rules of a file."""
        labels = {card.uuid: frozenset(f"{k}={v}" for k, v in card.labels.items()) for card in file.cards}
        return cls(None if file.rules is None else tuple(file.rules), labels)

    @property
    def open(self) -> bool:
        """Whether it restricts nothing."""
        return self.rules is None

    def rules_of(self, person: Person, now: datetime) -> list[Rule]:
        """The rules that are about a person now."""
        return [rule for rule in self.rules or () if _is_about(rule, person) and _holds(rule, now)]

    def starts(self, person: Person, now: datetime) -> list[Rule]:
        """The rules by which a person may start something now."""
        own = [rule for rule in self.rules_of(person, now) if rule.over is None and "use" in rule.rights]
        return [rule for rule in own if rule.allow is not None]

    def rights(
        self, person: Person, owner: str, groups_of: Callable[[str], Collection[str]], now: datetime
    ) -> set[Right]:
        """A person's rights on the sessions of `owner`. `groups_of` is asked only where a rule names groups."""
        found: set[Right] = set()
        for rule in self.rules_of(person, now):
            mine = rule.over is None and person.name == owner
            if mine or (rule.over is not None and _is_over(rule, owner, groups_of)):
                found.update(rule.rights)
        return found

    def offered(
        self, rules: Sequence[Rule], share: GPUShare, cards: Sequence[CardState], environment: str | None
    ) -> list[CardState]:
        """Those of `cards` on which one of `rules` allows the share, in the environment (None: in some)."""
        # a fleet has thousands of cards, so what is not about cards is asked once
        fitting = [
            rule.allow
            for rule in rules
            if rule.allow is not None and self._why_no_start(rule.allow, share, environment, True) is None
        ]
        if any(allow.models is allow.nodes is allow.cards is None for allow in fitting):
            return list(cards)
        found: set[str] = set()
        for allow in fitting:
            found.update(state.card.uuid for state in self._of(allow, cards))
        return [state for state in cards if state.card.uuid in found]

    def _of(self, allow: Allow, cards: Sequence[CardState]) -> Sequence[CardState]:
        if allow.nodes is not None:
            nodes = set(allow.nodes)
            cards = [state for state in cards if state.node in nodes]
        if allow.cards is not None:
            named = set(allow.cards)
            named.update([uuid for uuid, labels in self.labels.items() if not labels.isdisjoint(named)])
            cards = [state for state in cards if state.card.uuid in named]
        if allow.models is not None:
            cards = [state for state in cards if _is_of(state, allow.models)]
        return cards

    def why_not(
        self, rules: Sequence[Rule], share: GPUShare, cards: Sequence[CardState], environment: str | None
    ) -> str | None:
        """Why a person with these `rules` may start `share` on none of `cards`, in one sentence; None where they may
        on one at least. For a share without a card `cards` is not looked at."""
        if not rules:
            return "The policy has no rule by which this user may start a server."
        reasons: list[tuple[int, str]] = []
        for rule in rules:
            assert rule.allow is not None
            for card in cards if share.cards else [None]:
                reason = self._why_not(rule.allow, share, card, environment)
                if reason is None:
                    return None
                reasons.append(reason)
        # what gets furthest says most
        return max(reasons, key=lambda reason: reason[0], default=(0, "There is no such card."))[1]

    def _why_no_start(
        self, allow: Allow, share: GPUShare, environment: str | None, on_a_card: bool
    ) -> tuple[int, str] | None:
        if allow.environments is not None and environment is not None and environment not in allow.environments:
            return (
                5,
                f"The policy allows the environments {_list(allow.environments)}, "
                f"not {environment or 'one without a name'}.",
            )
        if allow.shares is not None and share.amount not in allow.shares and (share.cards or on_a_card):
            return 4, f"The policy allows {_list(allow.shares)}, not {share.amount}."
        return None

    def _why_not(
        self, allow: Allow, share: GPUShare, card: CardState | None, environment: str | None
    ) -> tuple[int, str] | None:
        reason = self._why_no_start(allow, share, environment, card is not None)
        if reason is not None or card is None:
            return reason
        if allow.models is not None and not _is_of(card, allow.models):
            return 1, f"The policy allows cards of {_list(allow.models)}, not {card.card.model}."
        if allow.nodes is not None and card.node not in allow.nodes:
            return 2, f"The policy allows the nodes {_list(allow.nodes)}."
        if allow.cards is not None:
            names = {card.card.uuid, *self.labels.get(card.card.uuid, ())}
            if names.isdisjoint(allow.cards):
                return 3, f"The policy allows only cards with {_list(allow.cards)}."
        return None

    def environments(self, rules: Sequence[Rule]) -> list[str] | None:
        """The environments that any of `rules` allows; None: all."""
        found: list[str] = []
        for rule in rules:
            if rule.allow is None:
                continue
            if rule.allow.environments is None:
                return None
            found += [name for name in rule.allow.environments if name not in found]
        return found

    def most_sessions(self, rules: Sequence[Rule]) -> int | None:
        """How many sessions at once `rules` allow, the kindest of them; None: as many as there is room for."""
        counts = [rule.allow.sessions for rule in rules if rule.allow is not None]
        known = [count for count in counts if count is not None]
        return None if len(known) < len(counts) or not known else max(known)


def _is_about(rule: Rule, person: Person) -> bool:
    return (
        rule.for_all
        or person.name in rule.users
        or not person.groups.isdisjoint(rule.groups)
        or not person.roles.isdisjoint(rule.roles)
    )


def _holds(rule: Rule, now: datetime) -> bool:
    return (rule.since is None or rule.since <= now) and (rule.until is None or now < rule.until)


def _is_over(rule: Rule, owner: str, groups_of: Callable[[str], Collection[str]]) -> bool:
    assert rule.over is not None
    return owner in rule.over.users or (
        bool(rule.over.groups) and not set(rule.over.groups).isdisjoint(groups_of(owner))
    )


def _is_of(card: CardState, models: Sequence[str]) -> bool:
    model = card.card.model
    return model in models or model.partition("-")[0] in models


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
