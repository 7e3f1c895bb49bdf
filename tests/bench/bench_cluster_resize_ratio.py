"""How much longer it takes others to change a share on a cluster: they delete the pod and start it with the new share.

Both in the same run: ours until the limit is in force in the running process; theirs until a program in the new pod
answers. That program starts within milliseconds, so that a notebook server, which takes seconds, is not counted against
them; nor is what the user has to do again.
"""

from __future__ import annotations

import statistics
import time

from tests.bench.bench_cluster_resize import resizes
from tests.bench.cluster import NAMESPACE, Asker, Bench, bench, line, load
from tests.support.cluster.cards import Program, claim, pod, wait_running
from tests.support.common import until

ROUNDS = 6


def _anew(made: Bench, eighths: int, program: Program | None) -> tuple[float, Program]:
    """Seconds in which a pod is deleted and another one with `eighths` answers."""
    api = made.cluster.api
    began = time.monotonic()
    if program is not None:
        api.delete("Pod", "theirs", NAMESPACE, grace=0)
        until(lambda: api.find("Pod", "theirs", NAMESPACE) is None, 120, "the pod to go")
        api.delete("ResourceClaim", "theirs", NAMESPACE)
        until(lambda: api.find("ResourceClaim", "theirs", NAMESPACE) is None, 120, "the claim to go")
    api.create(claim("theirs", NAMESPACE, eighths))
    api.create(pod("theirs", NAMESPACE, "theirs"))
    wait_running(made.cluster, "theirs", NAMESPACE)
    started = Program(made.cluster, "theirs", NAMESPACE)
    taken = time.monotonic() - began
    if program is not None:
        program.close()
    return taken, started


def run() -> tuple[float, str]:
    """Their median over ours."""
    ours: list[float] = []
    theirs: list[float] = []
    with bench() as made:
        session, program = made.session("ann", "1/8")
        asker = Asker(made.service, session)
        resizes(made, asker, program, 10)
        _, other = _anew(made, 1, None)
        print(f"resize on a cluster and what others do instead; {load()}")
        for round_ in range(ROUNDS):
            ours += resizes(made, asker, program, 20)
            taken, other = _anew(made, (2, 1)[round_ % 2], other)
            theirs.append(taken * 1e3)
        program.close()
        other.close()
    print(line("ours: limit in force in the running process", ours))
    print(line("theirs: the pod is deleted, another one answers", theirs))
    return statistics.median(theirs) / statistics.median(ours), "times"
