"""`make cluster`: a cluster for people, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from . import build
from .cluster import cluster, why_not


def main() -> int:
    """Start it, say how to use it, and end it when asked to."""
    words = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    words.add_argument("--simulated-nodes", type=int, default=0, help="nodes played by kwok")
    words.add_argument("--scheduler-requests", type=int, help="requests a second of the scheduler; its own limit else")
    given = words.parse_args()
    reason = why_not()
    if reason:
        print(f"No cluster can be started here: {reason}. Needed are root and, on Debian or Ubuntu:", file=sys.stderr)
        print("  apt install runc containernetworking-plugins busybox-static iptables iproute2", file=sys.stderr)
        return 1
    build.programs()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with cluster(scheduler_requests=given.scheduler_requests) as made:
        if given.simulated_nodes:
            made.add_simulated_nodes(given.simulated_nodes)
        print(f"A Kubernetes runs at {made.server}, its node's files and logs are in {made.host.folder}.")
        print(f"  export KUBECONFIG={made.kubeconfig}")
        print(f"  export PATH={build.place('kubernetes')}:$PATH   # kubectl")
        print(f"  {' '.join(made.host.prefix()[:-1])}   # a shell on the node")
        print("Ctrl-C ends it and removes everything.", flush=True)
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
