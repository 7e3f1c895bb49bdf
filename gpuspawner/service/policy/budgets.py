"""Budgets: how much of them is used, what is said at which level, and what follows at the end.

At the end of a budget nothing of its users starts or grows. After its grace what runs is shrunk to 1/8 of its card, and
later, where the policy says so, saved and parked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Engine

from gpuspawner.errors import NotAllowed, Unavailable
from gpuspawner.fleet.base import Notice
from gpuspawner.service.ledger.report import month_of
from gpuspawner.service.ledger.sums import HOUR, Total, totals
from gpuspawner.service.policy.people import Directory
from gpuspawner.service.policy.schema import Budget
from gpuspawner.service.policy.source import PolicySource
from gpuspawner.service.tariff import money

#: Seconds for which a sum is believed; between two of them people use more than it says.
FRESH = 30.0


class OverBudget(NotAllowed):
    """A budget is used up (403)."""

    code = "budget"


@dataclass(frozen=True)
class Account:
    """A budget of somebody: `whose` is a user or a group. Eighth-seconds, or millionths."""

    budget: Budget
    whose: str
    users: frozenset[str] | None
    group: str | None = None


@dataclass
class _Used:
    at: float = float("-inf")
    by_user: dict[str, int] = field(default_factory=dict)


class Budgets:
    """What is left of the budgets of the policy in force. Thread-safe."""

    def __init__(
        self, source: PolicySource, directory: Directory, engine: Engine, clock: Callable[[], float] = time.time
    ) -> None:
        self._source = source
        self._directory = directory
        self._engine = engine
        self._clock = clock
        self._lock = threading.Lock()
        self._used: dict[tuple[str, int], _Used] = {}
        #: since when each budget of somebody is used up, in seconds since the epoch
        self.over_since: dict[tuple[str, str], float] = {}

    @property
    def any(self) -> bool:
        """Whether there are budgets at all."""
        return bool(self._source.current.file.budgets)

    def accounts(self, user: str) -> list[Account]:
        """The budgets that a user draws on. Raises Unavailable."""
        budgets = self._source.current.file.budgets
        if not budgets:
            return []
        groups = self._directory.person(user).groups if any(budget.groups for budget in budgets) else frozenset()
        found = []
        for budget in budgets:
            members = groups.intersection(budget.groups)
            if user in budget.users or (budget.each and (members or not (budget.groups or budget.users))):
                found.append(Account(budget, user, frozenset({user})))
            elif not budget.each:
                found += [Account(budget, group, None, group) for group in sorted(members)]
        return found

    def used(self, account: Account) -> int:
        """Eighth-seconds within the window, or millionths within the month."""
        by_user = self._by_user(account.budget)
        if account.users is not None:
            return sum(by_user.get(user, 0) for user in account.users)
        return sum(amount for user, amount in by_user.items() if account.group in self._directory.person(user).groups)

    def _by_user(self, budget: Budget) -> dict[str, int]:
        now = self._clock()
        if budget.money is not None:
            prices = self._source.current.prices
            begin = month_of(datetime.fromtimestamp(now, prices.zone).strftime("%Y-%m"), prices.zone)[0]
            key = "money", 0
        else:
            # a window that begins with an hour is made of sums by the hour
            begin, key = int(now) // HOUR * HOUR - budget.days * 86400, ("eighths", budget.days)
        with self._lock:
            kept = self._used.setdefault(key, _Used())
            if now - kept.at >= FRESH or now < kept.at:
                kept.by_user = _summed(totals(self._engine, begin, int(now)), key[0])
                kept.at = now
            return kept.by_user

    def check(self, user: str) -> None:
        """Whether a user may start or grow. Raises OverBudget, Unavailable."""
        for account in self.accounts(user):
            used, most = self.used(account), limit(account.budget)
            if used >= most:
                said = f"{words(account.budget, used)} of {words(account.budget, most)}"
                message = f"The budget {account.budget.name!r} of {account.whose} is used up: {said}."
                raise OverBudget(message, field="budget")

    def why_not(self, user: str) -> str | None:
        """Why a user may start and grow nothing; None where they may, and where the hub does not say who they are."""
        if not self.any:
            return None
        try:
            self.check(user)
        except OverBudget as error:
            return error.message
        except Unavailable:
            return None
        return None

    def notices(self, user: str) -> list[Notice]:
        """What a user should know of their budgets. Raises Unavailable."""
        found = []
        now = self._clock()
        for account in self.accounts(user):
            used, most = self.used(account), limit(account.budget)
            percent = used * 100 // most if most else 100
            said = (
                f"{words(account.budget, used)} of {words(account.budget, most)} of the budget {account.budget.name!r}"
            )
            if percent >= 100:
                since = self.over_since.get((account.budget.name, account.whose), now)
                deadline = since + account.budget.grace_minutes * 60
                late = now >= deadline
                then = (
                    "what runs is shrunk to 1/8 of its card" if late else "what runs is then shrunk to 1/8 of its card"
                )
                message = f"{said} are used: nothing starts or grows, and {then}."
                found.append(Notice("budget_used", message, since, None if late else deadline))
            elif (level := max((level for level in account.budget.warn if percent >= level), default=None)) is not None:
                found.append(Notice("budget", f"{said} are used, more than {level} %.", now))
        return found

    def to_shrink(self, users: Iterable[str]) -> dict[str, str]:
        """Of `users` those whose budget has been used up for longer than its grace, and why. Raises Unavailable."""
        return self._late(users, lambda budget: budget.grace_minutes)

    def to_park(self, users: Iterable[str]) -> dict[str, str]:
        """Of `users` those whose sessions are to be parked for that, and why. Raises Unavailable."""
        return self._late(
            users, lambda budget: None if budget.park_minutes is None else budget.grace_minutes + budget.park_minutes
        )

    def _late(self, users: Iterable[str], minutes: Callable[[Budget], int | None]) -> dict[str, str]:
        found: dict[str, str] = {}
        now, over = self._clock(), set()
        for user in users:
            for account in self.accounts(user):
                if self.used(account) < limit(account.budget):
                    continue
                key = account.budget.name, account.whose
                over.add(key)
                since = self.over_since.setdefault(key, now)
                most = minutes(account.budget)
                if most is not None and now - since >= most * 60:
                    found[user] = f"the budget {account.budget.name!r} of {account.whose} is used up"
        for key in self.over_since.keys() - over:
            del self.over_since[key]
        return found


def limit(budget: Budget) -> int:
    """All of a budget: eighth-seconds, or millionths."""
    return budget.money if budget.money is not None else (budget.eighth_hours or 0) * 3600


def words(budget: Budget, amount: int) -> str:
    """An amount of a budget for people."""
    if budget.money is not None:
        return money(amount)
    return f"{amount / 3600:.4g} eighth-hours"


def _summed(found: Iterable[Total], what: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for total in found:
        if total.kind == "session":
            amount = total.charge_micros if what == "money" else total.eighth_seconds
            sums[total.user] = sums.get(total.user, 0) + amount
    return sums
