"""The supervisor: starts the parts in order, keeps them running, ends them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx

from gpuspawner import tls
from gpuspawner.errors import Conflict, Unavailable
from gpuspawner.node.limits import launch
from gpuspawner.processes import start_time
from gpuspawner.state import Settings
from gpuspawner.supervisor import logs
from gpuspawner.supervisor.keeper import Keeper, PidFile, end_process
from gpuspawner.supervisor.parts import SIMULATION, Part

#: Seconds for all parts to answer at the first start.
READY_WITHIN = 90.0
#: A part that dies this often before it answers once will not get better by another try.
_TOO_MANY_DEATHS = 4


class Supervisor:
    """Runs `parts` for one state folder."""

    def __init__(self, settings: Settings, parts: list[Part]) -> None:
        self.settings = settings
        self.keepers = [Keeper(part, settings.state / "run", settings.state / "logs") for part in parts]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start every part and wait until it answers. Raises Unavailable, with the log's end, if one does not."""
        self._tasks.append(asyncio.create_task(logs.keep_short(self.settings.state / "logs"), name="logs"))
        async with asyncio.timeout(READY_WITHIN):
            for keeper in self.keepers:
                self._tasks.append(asyncio.create_task(keeper.keep(), name=keeper.part.name))
                # the hub only asks the service when somebody comes, so the slow starters start together
                if keeper.part.socket is not None or keeper.part.name == "proxy":
                    await self._ready(keeper)
            for keeper in self.keepers:
                await self._ready(keeper)
            await self._routed()

    async def _ready(self, keeper: Keeper) -> None:
        while not await answers(keeper.part):
            if keeper.deaths >= _TOO_MANY_DEATHS:
                raise Unavailable(
                    f"The {keeper.part.name} does not start. The end of {keeper.log}:\n{keeper.last_lines()}"
                )
            await asyncio.sleep(0.05)

    async def _routed(self) -> None:
        """Return when the hub and the service are reached through the proxy."""
        public = f"http://127.0.0.1:{self.settings.port}"
        for path in (f"{self.settings.base_url}hub/health", f"{self.settings.service_prefix}api/v1/health"):
            while await status_of(public + path) != 200:  # noqa: ASYNC110 - another process has no event to await
                await asyncio.sleep(0.05)

    async def end(self) -> None:
        """End hub, service and proxy, then simulated cards unless a session uses them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        sessions = live_sessions(self.settings)
        await asyncio.gather(*(keeper.end() for keeper in self.keepers if not keeper.part.stays))
        for keeper in self.keepers:
            if keeper.part.stays and not sessions:
                await keeper.end()


async def answers(part: Part) -> bool:
    """Whether a part is ready."""
    if part.url is not None:
        status = await status_of(part.url, part.headers)
        return status is not None and status < 400
    if part.socket is not None:
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.closing(probe):
            probe.settimeout(5.0)
            return probe.connect_ex(str(part.socket)) == 0
    return True


async def status_of(url: str, headers: dict[str, str] | None = None) -> int | None:
    """The HTTP status at `url`; None if nothing answers."""
    try:
        async with httpx.AsyncClient(timeout=5.0, trust_env=False, verify=tls.context()) as client:
            return (await client.get(url, headers=headers)).status_code
    except httpx.HTTPError:
        return None


async def authenticator(settings: Settings) -> str | None:
    """The class by which people sign in, as the running hub says; None where its configuration lets nobody ask."""
    headers = {"Authorization": f"token {settings.secret('service_token')}"}
    try:
        async with httpx.AsyncClient(timeout=5.0, trust_env=False, verify=tls.context(), headers=headers) as client:
            answer = await client.get(f"{settings.hub_api}/info")
            return str(answer.raise_for_status().json()["authenticator"]["class"]).rpartition(".")[2]
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return None


@contextlib.contextmanager
def only_one(settings: Settings) -> Iterator[None]:
    """Hold the lock of the state folder. Raises Conflict, naming the holder, while another supervisor runs."""
    descriptor = os.open(lock_file(settings), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = PidFile(lock_file(settings)).running()
            who = f"process {holder[0]}" if holder else "another process"
            raise Conflict(f"gpuspawner is already running here ({who}).", code="running") from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {start_time(os.getpid())}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def lock_file(settings: Settings) -> Path:
    """The file whose lock says that a supervisor runs, and which: a PidFile."""
    return settings.state / "run" / "lock"


async def end_leftovers(settings: Settings, *, simulation: bool) -> list[str]:
    """End parts that a killed supervisor left, and with `simulation` also simulated cards. Their names."""
    ended = []
    for path in sorted((settings.state / "run").glob("*.pid")):
        if path.stem == SIMULATION and not simulation:
            continue
        if found := PidFile(path).running():
            await end_process(*found, within=10.0)
            ended.append(path.stem)
        path.unlink(missing_ok=True)
    return ended


def session_folders(settings: Settings) -> list[Path]:
    """The folders of all sessions that the node has not cleared away."""
    folder = settings.state / "node" / "sessions"
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def live_sessions(settings: Settings) -> list[Path]:
    """The folders of sessions whose server runs."""
    return [path for path in session_folders(settings) if launch.session_alive(path)]


def require_free_ports(settings: Settings) -> None:
    """Raises Conflict naming the first of the four ports that something else listens on."""
    for port in range(settings.port, settings.port + 4):
        probe = socket.socket()
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.closing(probe):
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                raise Conflict(
                    f"Port {port} on 127.0.0.1 is in use by another program. gpuspawner needs the four ports from "
                    f"{settings.port} on; choose others with GPUSPAWNER_PORT.",
                    code="port_in_use",
                ) from None


async def until_signal() -> signal.Signals:
    """Wait for SIGINT or SIGTERM (or SIGHUP, a closed terminal)."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[signal.Signals] = loop.create_future()

    def hear(sig: signal.Signals) -> None:
        if not heard.done():
            heard.set_result(sig)

    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(sig, hear, sig)
    return await heard
