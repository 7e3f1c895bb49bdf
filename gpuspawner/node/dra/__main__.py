"""`python -m gpuspawner.node.dra`: the node agent of a Kubernetes node, until it is told to end (SIGTERM).

Sessions go on without it; it takes them up again at its next start.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuspawner.card import Card
from gpuspawner.errors import GPUSpawnerError
from gpuspawner.kubernetes_api import ApiError, Backoff, KubeApi
from gpuspawner.node.agent import Agent
from gpuspawner.node.dra import attributes, install
from gpuspawner.node.dra.claims import Claims
from gpuspawner.node.dra.following import Following
from gpuspawner.node.dra.plugin import Plugin
from gpuspawner.node.dra.pods import Pods
from gpuspawner.node.dra.published import Device
from gpuspawner.node.dra.shares import Shares
from gpuspawner.node.drivers.machine import of_machine
from gpuspawner.node.gate import Policy
from gpuspawner.node.limits.enforcer import Name, wanted
from gpuspawner.node.starting import driver_files

log = logging.getLogger(__name__)
LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Settings:
    """How this node's agent runs. `kubeconfig`: None in a pod, which has a service account."""

    node: str
    state: Path
    kubelet: Path
    cdi: Path
    kubeconfig: str | None


def settings(argv: list[str] | None = None) -> Settings:
    """From the command line; the node's name may also come from NODE_NAME, as the chart sets it."""
    words = argparse.ArgumentParser(prog="python -m gpuspawner.node.dra", description=__doc__)
    words.add_argument("--node", default=os.environ.get("NODE_NAME"), help="this node's name in Kubernetes")
    words.add_argument("--state", type=Path, default=Path("/var/lib/gpuspawner"), help="where it keeps its state")
    words.add_argument("--kubelet", type=Path, default=Path("/var/lib/kubelet"), help="the kubelet's folder")
    words.add_argument("--cdi", type=Path, default=Path("/var/run/cdi"), help="where the runtime reads CDI specs")
    words.add_argument("--kubeconfig", default=None, help="outside of a pod")
    given = words.parse_args(argv)
    if not given.node:
        words.error("--node: nothing was given. Allowed: the node's name in Kubernetes (or NODE_NAME).")
    return Settings(given.node, given.state, given.kubelet, given.cdi, given.kubeconfig)


async def run(given: Settings, ended: asyncio.Event) -> None:
    """Serve until `ended`. Raises GPUSpawnerError where it cannot start."""
    pods = Pods()
    given.state.mkdir(mode=0o711, parents=True, exist_ok=True)
    driver = of_machine()
    agent = await asyncio.to_thread(
        Agent, given.state, driver, policy=Policy.from_env(), presence=pods, enforcers=enforcers()
    )
    claims = Claims(given.state / "node" / "claims.sqlite")
    api = await KubeApi.connect(given.kubeconfig)
    try:
        cards = agent.cards()

        def grade_of(uuid: str) -> str:
            """A container is a mount and PID namespace of its own."""
            return "kernel" if agent.grade_of(uuid) == "kernel" else "guarded"

        def describe(cards: list[Card]) -> list[Device]:
            grades = {card.uuid: grade_of(card.uuid) for card in cards}
            resizes = {card.uuid: agent.resize_of(card.uuid) for card in cards}
            return attributes.devices(cards, driver, grades, resizes)

        files, shims = install.libraries(given.state / "lib", driver_files(driver, cards))
        shares = Shares(
            agent,
            claims,
            pods,
            api,
            given.node,
            describe,
            specs=given.cdi,
            files=files,
            shims=shims,
            access=driver.access,
            grade_of=grade_of,
            node_uid=await _node_uid(api, given.node),
        )
        await _until_it_works(shares.restart)
        plugin, following = Plugin(shares, given.kubelet), Following(api, shares)
        await plugin.start()
        log.info("node %s offers %d cards", given.node, len(cards))
        forever: list[Coroutine[Any, Any, None]] = [following.run(), shares.publisher.keep(), _look(shares)]
        tasks = [asyncio.create_task(each) for each in forever]
        over = asyncio.create_task(ended.wait())
        done, _ = await asyncio.wait([*tasks, over], return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, over):
            task.cancel()
        await following.close()
        await plugin.stop()
        for task in done - {over}:
            task.result()  # a fault of ours: said, and a new start tried by whoever started us
    finally:
        await api.close()
        claims.close()
        agent.close()


def enforcers() -> list[Name]:
    """Of those that may be used, what can hold a container that a kubelet starts. Raises InvalidInput.

    The driver's own limits are by a cgroup of ours, and MIG slices need device files: neither is a pod's yet.
    """
    return [name for name in wanted() if name in ("virtual-function", "shim", "whole")] or ["shim"]


async def _look(shares: Shares) -> None:
    while True:
        try:
            await shares.look()
        except Exception:
            log.exception("a look at the sessions failed")
        await asyncio.sleep(LOOK_SECONDS)


async def _node_uid(api: KubeApi, node: str) -> str | None:
    found: dict[str, Any] | None = None

    async def look() -> None:
        nonlocal found
        found = await api.find(f"/api/v1/nodes/{node}")

    await _until_it_works(look)
    return found["metadata"]["uid"] if found else None


async def _until_it_works(do: Any) -> None:
    backoff = Backoff()
    while True:
        try:
            await do()
            return
        except ApiError as error:
            log.warning("%s", error.message)
            await backoff.wait()


async def _main(given: Settings) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await run(given, ended)


def main() -> int:
    """Exit status: 0 when told to end, 1 where it cannot run."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    given = settings()
    try:
        asyncio.run(_main(given))
    except GPUSpawnerError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
