"""On a cluster, from a request at the service to the new limit in force inside the running process: a real API server,
kubelet and containerd on this machine, simulated cards.

The process asks the driver for its memory again and again and notes the monotonic clock, which all processes of a
machine share, at the first answer with the new limit. The baseline, taken in turns with it, is what is between them:
one change of an object at the API server and the watch that shows it.
"""

from __future__ import annotations

import threading
import time

from tests.bench.cluster import CARD, NAMESPACE, Asker, Bench, bench, line, load, percentile
from tests.support.cluster.cards import Program
from tests.support.common import until

ROUNDS = 200


def resizes(made: Bench, asker: Asker, program: Program, rounds: int) -> list[float]:
    """Milliseconds from each request to its limit in force, grows and shrinks in turns from an eighth."""
    taken = []
    for round_ in range(rounds):
        share, total = (("1/4", CARD // 4), ("1/8", CARD // 8))[round_ % 2]
        program.send(f"wait {total}")
        asked = time.monotonic_ns()
        asker.resize(share)
        taken.append((int(program.receive()) - asked) / 1e6)
    return taken


class _Seen(threading.Thread):
    """A watch of config maps: when each version of one was seen."""

    def __init__(self, made: Bench) -> None:
        super().__init__(daemon=True)
        self.at: dict[str, float] = {}
        self._api = made.cluster.api
        self.start()

    def run(self) -> None:
        for _, found in self._api.watch("ConfigMap", NAMESPACE):
            self.at[found["metadata"]["resourceVersion"]] = time.monotonic()


def _baseline(made: Bench, rounds: int) -> list[float]:
    api = made.cluster.api
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": NAMESPACE}})
    seen, taken = _Seen(made), []
    until(lambda: seen.at, 60, "the watch")
    for round_ in range(rounds):
        asked = time.monotonic()
        version = api.patch("ConfigMap", "one", {"data": {"n": str(round_)}}, NAMESPACE)["metadata"]["resourceVersion"]
        taken.append((until(lambda v=version: seen.at.get(v), 60, "the change to be seen") - asked) * 1e3)
    return taken


def run() -> tuple[float, str]:
    """The 99th percentile over ROUNDS resizes, in milliseconds."""
    with bench() as made:
        session, program = made.session("ann", "1/8")
        asker = Asker(made.service, session)
        resizes(made, asker, program, 10)
        print(f"resize on a cluster with simulated cards, {ROUNDS} rounds; {load()}")
        taken = resizes(made, asker, program, ROUNDS)
        print(line("one change at the API server, seen by a watch", _baseline(made, 50)))
        program.close()
    print(line("limit in force", taken))
    print(line("  grow", taken[::2]))
    print(line("  shrink", taken[1::2]))
    return percentile(taken, 99), "ms"
