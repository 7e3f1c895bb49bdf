"""A month of a house with 300 people, in simulated time, whose service is killed again and again while it writes.

    python -m tests.support.month FOLDER DATABASE_URL '{"seed": 1}'

The fleet says what was held when (kept_fleet.py); the ledger must say the same, and its money must add up to the unit.
The clock stands still while something happens, and through a kill, so that even what was under way is known exactly.
Prints what it found as JSON. Services are forked from this process, which has everything imported.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuspawner.errors import GPUSpawnerError
from gpuspawner.service.requests.rate import RateLimit
from gpuspawner.service.store import LIVE
from gpuspawner.share import GPUShare

from .kept_fleet import KeptFleet, entries
from .memory_fleet import House
from .month_books import POLICY, check

HOUR = 3600_000
#: The first moment of October 2026 in Berlin, where the clocks are set back in its last week.
FIRST = 1_790_805_600_000
_SHARES = ("1/8", "1/8", "1/4", "1/2", "1")


@dataclass(frozen=True)
class Plan:
    """`kills`: end when there were so many, else when the month is over. `step`: at most so many hours between two
    rounds of actions. `outages`: whether the service sometimes stays away after a kill. `lives`: simulated
    hours between two kills, at most."""

    seed: int = 1
    people: int = 300
    nodes: int = 4
    cards: int = 4
    hours: int = 745
    step: float = 4.0
    actions: int = 4
    outages: bool = True
    kills: int | None = None
    lives: float = 100.0


class Month:
    """Runs it. The clock is eight bytes in a file that all services map."""

    def __init__(self, folder: Path, url: str, plan: Plan) -> None:
        self.folder, self.url, self.plan = folder, url, plan
        self.random = random.Random(plan.seed)
        with (folder / "clock").open("w+b") as file:
            file.write(FIRST.to_bytes(8, "little"))
            file.flush()
            self._clock = mmap.mmap(file.fileno(), 8)
        time.time_ns = lambda: self.now * 1_000_000  # type: ignore[assignment]
        self.kills = 0
        #: of each kill after which the service stayed away: when, until when, and when it had looked last
        self.outages: list[tuple[int, int, int]] = []

    @property
    def now(self) -> int:
        """Simulated ms since the epoch."""
        return int.from_bytes(self._clock[:8], "little")

    def go(self, hours: float) -> None:
        """Set the clock forward."""
        self._clock[:8] = (self.now + int(hours * HOUR)).to_bytes(8, "little")

    @property
    def _over(self) -> bool:
        if self.plan.kills is not None:
            return self.kills >= self.plan.kills
        return self.now >= FIRST + self.plan.hours * HOUR

    def run(self) -> dict[str, Any]:
        """The month; what was found in the books afterwards."""
        while not self._over:
            life = self._fork()
            self._let_live(life)
            os.kill(life, signal.SIGKILL)
            _, status = os.waitpid(life, 0)
            if os.WIFEXITED(status) and os.WEXITSTATUS(status):
                raise RuntimeError("a service failed; its words are above")
            self.kills += os.WIFSIGNALED(status)
            if self.plan.outages and self.kills % 4 == 1 and not self._over:
                self._stay_away()
        _, status = os.waitpid(self._fork(last=True), 0)
        if status:
            raise RuntimeError("the last service failed; its words are above")
        house = House(self.folder, url=self.url, policy=POLICY, fleet=self._fleet())
        found = check(house, entries(self.folder / "fleet"), self.outages, self.now, self.plan.seed)
        house.engine.dispose()
        return {**found, "people": self.plan.people, "kills": self.kills, "outages": len(self.outages)}

    def _let_live(self, life: int) -> None:
        """Wait until a service is to be killed: by the simulated clock, and some while it starts."""
        until = self.now + int(self.random.uniform(0, self.plan.lives) * HOUR)
        early = self.random.random() < 0.2
        latest = time.monotonic() + (self.random.uniform(0.02, 0.4) if early else 60)
        while self.now <= until and time.monotonic() < latest:
            if os.waitid(os.P_PID, life, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
            time.sleep(0.005)
        time.sleep(self.random.uniform(0, 0.1))

    def _fleet(self) -> KeptFleet:
        return KeptFleet(self.folder / "fleet", self.plan.nodes, self.plan.cards, owners=self.plan.seed % 2 == 0)

    def _stay_away(self) -> None:
        """The service stays away for some hours, in which programs end."""
        fleet, begin = self._fleet(), self.now
        fleet.away = True
        house = House(self.folder, url=self.url, policy=POLICY, fleet=fleet, start=False)
        newest = house.store.ledger(limit=1)
        seen = max(int(house.store.mark("seen_ms") or 0), newest[0].at_ms if newest else 0)
        house.engine.dispose()
        self.go(self.random.uniform(0.1, 5))
        for session in list(fleet.held):
            if self.random.random() < 0.2:
                fleet.stops(session)
        self.go(self.random.uniform(0.1, 5))
        fleet.free_up()
        self.outages.append((begin, self.now, seen))

    def _fork(self, last: bool = False) -> int:
        sys.stdout.flush()
        seed = self.random.random()
        child = os.fork()
        if child:
            return child
        try:
            _Life(self, random.Random(seed)).finish() if last else _Life(self, random.Random(seed)).live()
        except BaseException:
            logging.exception("the service failed")
            os._exit(1)
        os._exit(0)


class _Life:
    """One run of the service, until it is killed."""

    def __init__(self, month: Month, chance: random.Random) -> None:
        self.month, self.random = month, chance
        self.fleet = month._fleet()
        self.house = House(month.folder, url=month.url, policy=POLICY, fleet=self.fleet, rate=RateLimit(0))
        self.service = self.house.service
        self.by_api = chance.random() < 0.25  # to make an API takes as long as a life

    def _look(self) -> None:
        keeper = self.service.keeper
        keeper._next_beat = keeper._next_reading = keeper._next_sums = 0.0
        self.service.look()

    def live(self) -> None:
        while not self.month._over:
            self.month.go(self.random.uniform(0.05, self.month.plan.step))
            self._look()
            threads = [
                threading.Thread(target=self._act, args=(random.Random(self.random.random()),)) for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self._look()

    def finish(self) -> None:
        """What is left is ended, and written down."""
        self._look()
        for row in self.house.store.sessions(states=LIVE)[::2]:
            self.service.end(row.id, "hub", "the end")
        self.fleet.free_up()
        self._look()

    def _act(self, chance: random.Random) -> None:
        for _ in range(self.month.plan.actions):
            with suppress(GPUSpawnerError):  # no room, or another thread has ended it
                self._one(chance)

    def _one(self, chance: random.Random) -> None:
        what, session = chance.random(), self._some(chance)
        if what < 0.4 or session is None:
            user, name = f"u{chance.randrange(self.month.plan.people)}", f"w{chance.getrandbits(40):x}"
            self.service.start(user, name, GPUShare.parse(chance.choice(_SHARES)), actor="hub")
        elif what < 0.6:
            self._resize(session, chance.choice(_SHARES), f"{chance.getrandbits(64):016x}")
        elif what < 0.85:
            self.service.end(session, "hub", "the server was stopped")
        elif what < 0.92:
            self.fleet.stops(session)
        elif what < 0.96:
            self.fleet.free_up()
        elif what < 0.98:
            self.fleet.toggle(chance.choice(sorted(self.fleet._all)))
        else:
            row = self.house.store.ledger(session, 1)
            if row:
                self.house.store.corrected(row[0], chance.randrange(-(10**6), 10**6), "admin", "by chance")

    def _resize(self, session: str, share: str, key: str) -> None:
        if not self.by_api:
            self.service.change(session, GPUShare.parse(share), None, actor="admin")
            return
        headers = {"Idempotency-Key": key}
        answer = self.house.ask("admin", "PATCH", f"/sessions/{session}", json={"share": share}, headers=headers)
        if answer.status_code >= 500:
            raise RuntimeError(answer.text)

    def _some(self, chance: random.Random) -> str | None:
        live = [grant.session for grant in self.fleet.grants() if not grant.ended]
        return chance.choice(live) if live else None


def main(folder: str, url: str, plan: str = "{}") -> int:
    """Run a month, print what was found; 1 where the books do not balance."""
    logging.basicConfig(level=logging.ERROR)
    made = Plan(**json.loads(plan))
    found = Month(Path(folder), url, made).run()
    print(json.dumps({**found, "plan": asdict(made)}))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
