"""LocalGPUSpawner: single-user servers as processes of this machine, each inside a GPU session."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyterhub.spawner import LocalProcessSpawner
from jupyterhub.utils import random_port
from traitlets import Integer, List, TraitError, Unicode, default, validate

from gpuspawner.errors import GPUSpawnerError
from gpuspawner.processes import is_same, start_time
from gpuspawner.spawner import home, ports
from gpuspawner.spawner.client import Json
from gpuspawner.spawner.environments import OWN, Environment, choose, read_environments
from gpuspawner.spawner.errors import Refused
from gpuspawner.spawner.obtain import obtain_session
from gpuspawner.spawner.options import Choice, read_options
from gpuspawner.spawner.ready import Looks
from gpuspawner.spawner.shared import SharedSpawner, State, card_names
from gpuspawner.spawner.steps import Steps, tail
from gpuspawner.spawner.words import profile_words


class LocalGPUSpawner(SharedSpawner, LocalProcessSpawner):  # type: ignore[misc, unused-ignore]
    """Starts a user's server on this machine with a share of a card.

    The service decides on the share and says how to launch; this class asks, starts the process and tells
    JupyterHub how it goes. Users of the hub need no account on the machine.
    """

    if TYPE_CHECKING:  # JupyterHub's traits, which have no types
        port: Any
        pid: Any
        proc: Any

    server_log_dir = Unicode(
        "", help="Folder for the servers' output, a file per session. Empty: the hub's own output."
    ).tag(config=True)
    closed_ports: Any = List(
        Integer(min=1, max=65535),
        help="TCP ports that servers may never listen on: the installation's own. The hub gives up listening on them "
        "too when it starts its first server; what it listens on by then stays.",
    ).tag(config=True)
    environments: Any = List(
        help="""What a person may choose to run: Jupyter environments on this machine, each as an object of

        - `name`: lower-case letters, digits and dashes; what links and the API call it
        - `python` (a program), `prefix` (of a conda or virtual environment) or `command` (a list of words): what starts
          the single-user server; absolute, and readable for those whose sessions run it
        - `title`, `description`: for the form
        - `variables`: set in every session of it

        The first is the default. Empty: the one that the hub runs in.""",
    ).tag(config=True)
    started = Integer(0, help="Start time of the launcher, in clock ticks since boot, to tell a reused pid.")

    @validate("environments")
    def _valid_environments(self, proposal: Any) -> Any:
        try:
            read_environments(proposal["value"])
        except GPUSpawnerError as error:
            raise TraitError(f"LocalGPUSpawner.{error.message}") from error
        return proposal["value"]

    @default("cmd")
    def _default_cmd(self) -> list[str]:
        return [sys.executable, "-m", "jupyterhub.singleuser"]

    @default("default_url")
    def _default_default_url(self) -> str:
        return "/lab/tree/" + home.TOUR

    @default("env_keep")
    def _default_env_keep(self) -> list[str]:
        # LD_LIBRARY_PATH, PYTHONPATH and the like say where the hub finds things, not the session
        return ["LANG", "LC_ALL", "PATH", "TZ"]

    # -- options ---------------------------------------------------------------------------------------

    @property
    def known_environments(self) -> list[Environment]:
        """What can be started, the default first."""
        return read_environments(list(self.environments))

    async def offered_environments(self) -> list[Environment]:
        """What can be started, the default first."""
        return self.known_environments

    async def read_choice(self, user_options: Any) -> Choice:
        """The checked choice in `user_options`. Raises GPUSpawnerError."""
        wanted = read_options(user_options)
        choose(self.known_environments, wanted.environment)
        return wanted

    # -- state -----------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """What a restarted hub needs to find the server again, and the last choice."""
        state: State = super().get_state()
        if self.session_id:
            state["session"] = self.session_id
        if self.pid and self.started:
            state["started"] = self.started
        if self.choice.options:
            state["choice"] = self.choice.options
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.session_id = state.get("session", "")
        self.started = state.get("started", 0)
        try:
            self.choice = read_options(state.get("choice", {}))
        except GPUSpawnerError as error:
            self.log.warning("Forgetting the last choice of %s: %s", self._log_name, error)
            self.choice = Choice()
        if self.choice.environment not in (None, *(known.name for known in self.known_environments)):
            self.choice = replace(self.choice, environment=None)

    def clear_state(self) -> None:
        super().clear_state()
        self.session_id = ""
        self.started = 0

    # -- start -----------------------------------------------------------------------------------------

    def start(self) -> Awaitable[tuple[str, int]]:
        """Ask for a session and launch the server in it. Whatever goes wrong or cancels this, the session is given
        back."""
        return self._patient(self._start_session())

    async def _start_session(self) -> tuple[str, int]:
        self.steps, self.failure = Steps(), None
        self._may_hold = True
        self.proc = None
        closing = self._close_ports()
        try:
            names = self.user.name, self.name
            environment = choose(self.known_environments, self.wanted.environment)
            session, launch = await obtain_session(
                self.service,
                *names,
                self.wanted,
                self.default_share,
                self.steps,
                environment.name,
                self.longest_wait,
            )
            self.session_id = session["id"]
            self._save()
            async with self._own_time():
                address = await self._launched(session, launch, environment, closing)
        except BaseException as error:
            if isinstance(error, Refused) and error.status_code == 400 and self.wanted == self.choice:
                self.choice = Choice()  # it names what is not there any more
            self.failure = self._failure(error)
            self._not_counted(error)
            if isinstance(error, asyncio.CancelledError):
                self._answer_cancelled(self.failure.happened)
            await self._undo_start()
            raise
        self.choice = self.wanted
        self._remember({**self.choice.options, "profile": profile_words(session)})
        cards = card_names(session)
        self.steps.take("server", 95, f"The server{f' on {cards}' if cards else ''} is ready.")
        return address

    async def _launched(
        self, session: Json, launch: Json, environment: Environment, closing: Awaitable[None]
    ) -> tuple[str, int]:
        """The address of the server, launched in its session and answering."""
        cards = card_names(session)
        chosen = f"Chosen: {session['share']} of {cards}." if cards else "No card, as you asked."
        self.steps.take("card", 40, chosen)
        self.steps.take("environment", 50, f"{environment.title}, with your home folder.")
        await asyncio.to_thread(home.prepare, Path(launch["home"]), launch["uid"], launch["gid"])
        await closing
        address: tuple[str, int] = self._launch(launch, environment)
        self.steps.take("server", 60, f"The server is starting{f' on {cards}' if cards else ''}.")
        await self._up(*address, cards)
        return address

    def _close_ports(self) -> asyncio.Future[None]:
        """Keep servers from the installation's own ports, as far as this machine can."""
        if self.closed_ports and not ports.supported():
            self.log.warning("This kernel cannot keep servers from the ports %s: Linux 6.7 can", self.closed_ports)
        if not self.closed_ports or not ports.supported():
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return asyncio.shield(ports.close_once(self.closed_ports))

    async def _up(self, host: str, port: int, cards: str) -> None:
        """Wait for the server, so that JupyterHub's first look finds it. Its own looks get seconds apart, miss a
        server that has ended, and count what a user's own files did as the hub's failure. Raises Refused (424)."""
        looks = Looks(host, port, self._runs, self.http_timeout)
        if await looks.until_listening():
            self.steps.take("server", 80, f"The server{f' on {cards}' if cards else ''} loads its extensions.")
            if await looks.until_answering(f"{self.server.base_url if self.server else '/'}api"):
                return
        status = self.proc.poll()
        if status is None:
            raise Refused(424, f"Your server did not answer within {self.http_timeout} seconds.", code="silent")
        told = f"by signal {-status}" if status < 0 else f"with status {status}"
        raise Refused(424, f"Your server ended {told} while it was starting.", code="ended")

    def _runs(self) -> bool:
        return self.proc.poll() is None

    def _log_tail(self) -> tuple[str, ...]:
        if not (self.server_log_dir and self.session_id):
            return ()
        return tail(Path(self.server_log_dir) / f"{self.session_id}.log", (self.api_token or "",))

    def _launch(self, launch: Json, environment: Environment) -> tuple[str, int]:
        """Start the server's process as `launch` says. It is its own process session and outlives the hub."""
        if self.port == 0:
            self.port = random_port()
        program = self.cmd if environment is OWN else environment.command
        command = [*launch["argv_prefix"], *program, *self.get_args()]
        if launch["uid"] in (None, 0):
            command.append("--allow-root")  # only looked at where the session does run as root
        variables = {**self.get_env(), **environment.variables, "HOME": launch["home"], **launch["env"]}
        self.log.info("Starting %s in session %s", self._log_name, self.session_id)
        output = self._open_log()
        try:
            self.proc = subprocess.Popen(
                command,
                env=variables,
                cwd=launch["home"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        finally:
            if output is not None:
                os.close(output)
        self.pid = self.proc.pid
        self.started = start_time(self.pid) or 0
        address = self.ip or "127.0.0.1", self.port
        if self.server is not None:  # for a hub that is killed now, and started again
            self.server.ip, self.server.port = address
        self._save()
        return address

    def _open_log(self) -> int | None:
        if not self.server_log_dir:
            return None
        folder = Path(self.server_log_dir)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(folder / f"{self.session_id}.log", flags, 0o600)

    async def _undo_start(self) -> None:
        """Leave nothing behind of a start that failed or was cancelled."""

        if self.pid and is_same(self.pid, self.started):
            os.kill(self.pid, signal.SIGKILL)
        self.session_id = ""
        await self._release()
        self.clear_state()
        self._remember(self.choice.options)

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """The user's variables; the machine's list of users is not asked, since hub users are not in it."""
        env["USER"] = self.user.name
        env["SHELL"] = "/bin/bash"
        return env

    # -- life ------------------------------------------------------------------------------------------

    async def poll(self) -> int | None:
        """None while the server runs, else its exit status (0: unknown). Ends a dead server's session."""
        if self.proc is not None:
            status = self.proc.poll()
            if status is None:
                return None
        elif is_same(self.pid, self.started):
            return None
        else:
            status = 0
        if self._waiting_for_response:
            self._never_answered(f"The notebook server ended with status {status} before it was ready.")
        await self._release()
        self.clear_state()
        return int(status)

    async def _signal(self, sig: int) -> bool:
        """Signal the launcher, unless its pid belongs to somebody else by now."""
        if not is_same(self.pid, self.started):
            return False
        os.kill(self.pid, sig)
        return True

    async def stop(self, now: bool = False) -> None:
        """Stop the server, then end its session."""
        if self._waiting_for_response and not now:
            self._never_answered(f"The notebook server did not answer within {self.http_timeout} seconds.")
        try:
            await super().stop(now)
        finally:
            await self._release()

    # -- certificates of users without an account -------------------------------------------------------

    async def move_certs(self, paths: Json) -> Json:
        """Internal TLS needs an account per user, which users of this spawner do not have."""
        raise Refused(500, "LocalGPUSpawner does not support JupyterHub.internal_ssl.")
