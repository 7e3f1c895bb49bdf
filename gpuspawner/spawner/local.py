"""LocalGPUSpawner: single-user servers as processes of this machine, each inside a GPU session."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyterhub.handlers.pages import SpawnHandler
from jupyterhub.spawner import LocalProcessSpawner
from jupyterhub.utils import random_port
from sqlalchemy import inspect
from traitlets import Bool, Instance, Integer, List, TraitError, Unicode, default, observe, validate

from gpuspawner.errors import GPUSpawnerError
from gpuspawner.processes import is_same, start_time
from gpuspawner.share import GPUShare
from gpuspawner.spawner import form, home, ports
from gpuspawner.spawner.client import Json, ServiceClient
from gpuspawner.spawner.environments import OWN, Environment, choose, read_environments
from gpuspawner.spawner.errors import Refused
from gpuspawner.spawner.obtain import obtain_session, to_the_end
from gpuspawner.spawner.options import Choice, invalid, read_link, read_options
from gpuspawner.spawner.ready import Looks
from gpuspawner.spawner.steps import Failure, Steps, tail
from gpuspawner.spawner.words import profile_words

State = dict[str, Any]
# a start begins within milliseconds of its form
_CLAIM = 1.0


class LocalGPUSpawner(LocalProcessSpawner):  # type: ignore[misc, unused-ignore]
    """Starts a user's server on this machine with a share of a card.

    The service decides on the share and says how to launch; this class asks, starts the process and tells
    JupyterHub how it goes. Users of the hub need no account on the machine.
    """

    if TYPE_CHECKING:  # JupyterHub's traits, which have no types
        port: Any
        pid: Any
        proc: Any

    service_url = Unicode(
        "http://127.0.0.1:8003/services/gpuspawner/api/v1",
        help="Address of the gpuspawner service's REST API.",
    ).tag(config=True)
    service_token_file = Unicode(help="File that holds the service's token. Readable for the hub's user only.").tag(
        config=True
    )
    service_socket = Unicode(
        "",
        help="The service's own socket file, in a folder that sessions do not see. Empty: its port. A session that "
        "took the port while the service is down would be sent the token.",
    ).tag(config=True)
    server_log_dir = Unicode(
        "", help="Folder for the servers' output, a file per session. Empty: the hub's own output."
    ).tag(config=True)
    default_share = Unicode(
        "1/4",
        help="The share of a start that asks for none. Where it is not free, the first one that is.",
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
    offer_no_card = Bool(True, help="Whether a server can be started without a card.").tag(config=True)

    session_id = Unicode("", help="The GPU session of the running server.")
    started = Integer(0, help="Start time of the launcher, in clock ticks since boot, to tell a reused pid.")
    wanted = Instance(Choice, (), help="What this start asks for.")
    choice = Instance(Choice, (), help="The last choice that was granted. Kept when the server stops.")

    @validate("default_share")
    def _valid_default_share(self, proposal: Any) -> str:
        return str(GPUShare.parse(proposal["value"], "default_share"))

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

    @default("options_form")
    def _default_options_form(self) -> Callable[[Any], Any]:
        return form.options_form

    @default("options_from_form")
    def _default_options_from_form(self) -> Callable[[Any], Any]:
        return form.options_from_form

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Callable[[Any, Any], None]:
        return LocalGPUSpawner.accept_options

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.steps = Steps()
        self.failure: Failure | None = None
        self.link = form.Link()
        self._claimed_until = 0.0
        self._may_hold = True  # whether the service may still hold something for this server

    @property
    def service(self) -> ServiceClient:
        """The client of the service."""
        socket = Path(self.service_socket) if self.service_socket else None
        return ServiceClient(self.service_url, Path(self.service_token_file), socket)

    # -- options ---------------------------------------------------------------------------------------

    def claim_start(self) -> None:
        """The form was sent. JupyterHub answers 500 where a second one arrives before it has begun with the first.

        Raises Refused (409) for that one."""
        now = time.monotonic()
        if now < self._claimed_until:
            raise Refused(409, "This server is being started already, by another click or in another tab.")
        self._claimed_until = now + _CLAIM

    def accept_options(self, user_options: Any) -> None:
        """JupyterHub's `apply_user_options`: check the options before anything starts.

        JupyterHub has stored them already; refused ones are taken back, so that the next start without
        options is not refused for them too. The body {} asks for the default share, as it does in
        JupyterHub 5; from 6 on JupyterHub takes it for no body at all, which asks for what was started last.
        """
        self._claimed_until = 0.0
        try:
            wanted = read_options({} if _empty_object(self.handler) else user_options)
            choose(self.known_environments, wanted.environment)
            if wanted.share is not None and not wanted.share.cards and not self.offer_no_card:
                raise invalid("share", wanted.share.amount, "a share of a card")
        except GPUSpawnerError as error:
            self._remember(self.choice.options)
            raise Refused.from_error(error) from error
        self.wanted = wanted

    @property
    def known_environments(self) -> list[Environment]:
        """What can be started, the default first."""
        return read_environments(list(self.environments))

    @observe("handler")
    def _read_link(self, change: Any) -> None:
        """A link to the form chooses beforehand. JupyterHub would start at once what its query asks for; but a link
        comes from anywhere, and a start costs money, so a person has to press the button."""
        if isinstance(change["new"], SpawnHandler) and change["new"].request.method == "GET":
            query = change["new"].request.query_arguments
            self.link = form.Link(*read_link(query), cancelled="_cancelled" in query)
            query.clear()

    def _remember(self, options: State) -> None:
        self.user_options = options
        if self.orm_spawner is not None:
            self.orm_spawner.user_options = options
            self._save()

    def _save(self) -> None:
        """Store the state now. Where the hub is killed a moment later, it finds what it started."""
        if self.orm_spawner is not None and (db := inspect(self.orm_spawner).session) is not None:
            self.orm_spawner.state = self.get_state()
            db.commit()

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

    async def start(self) -> tuple[str, int]:
        """Ask for a session and launch the server in it.

        Whatever goes wrong or cancels this, the session is given back.
        """
        self.steps, self.failure = Steps(), None
        self._may_hold = True
        self.proc = None
        closing = self._close_ports()
        try:
            names = self.user.name, self.name
            obtaining = obtain_session(self.service, *names, self.wanted, self.default_share, self.steps)
            session, launch = await to_the_end(obtaining)
            self.session_id = session["id"]
            self._save()
            cards = _card_names(session)
            chosen = f"Chosen: {session['share']} of {cards}." if cards else "No card, as you asked."
            self.steps.take("card", 40, chosen)
            environment = choose(self.known_environments, self.wanted.environment)
            self.steps.take("environment", 50, f"{environment.title}, with your home folder.")
            await asyncio.to_thread(home.prepare, Path(launch["home"]), launch["uid"], launch["gid"])
            await closing
            address: tuple[str, int] = self._launch(launch, environment)
            self.steps.take("server", 60, f"The server is starting{f' on {cards}' if cards else ''}.")
            await self._up(*address, cards)
        except BaseException as error:
            if isinstance(error, Refused) and error.status_code == 400 and self.wanted == self.choice:
                self.choice = Choice()  # it names what is not there any more
            self.failure = self._failure(error)
            if isinstance(error, asyncio.CancelledError):
                self._answer_cancelled(self.failure.happened)
            await self._undo_start()
            raise
        self.choice = self.wanted
        self._remember({**self.choice.options, "profile": profile_words(session)})
        self.steps.take("server", 95, f"The server{f' on {cards}' if cards else ''} is ready.")
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

    def _failure(self, error: BaseException) -> Failure:
        """What the failure page says of `error`."""
        held = bool(self.session_id)
        code = error.code if isinstance(error, Refused) else ""
        if isinstance(error, Refused):
            happened = error.jupyterhub_message
        elif isinstance(error, asyncio.CancelledError):
            happened = f"The start was stopped after {self.steps.seconds:.0f} seconds, before the server was ready."
        else:
            happened = f"The hub could not start the server ({type(error).__name__})."
        return form.failure(happened, code, held, self._log_tail())

    def _answer_cancelled(self, happened: str) -> None:
        """Answer the request that asked for this start where it still waits: JupyterHub would say 500."""
        if self.handler is not None and not self.handler._finished:
            self.handler.send_error(409, exc_info=(Refused, Refused(409, happened, code="cancelled"), None))

    def _log_tail(self) -> tuple[str, ...]:
        if not (self.server_log_dir and self.session_id):
            return ()
        return tail(Path(self.server_log_dir) / f"{self.session_id}.log", (self.api_token or "",))

    def _never_answered(self, what: str) -> None:
        self.failure = form.failure(what, "silent", True, self._log_tail())

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

    async def _release(self) -> None:
        """End what the service holds for this server, by its id or, where the hub was killed before it knew
        that, by its name. A failure is logged: the service's own watch over launchers is the safety net."""
        if not self._may_hold:
            return
        session, self.session_id = self.session_id, ""
        try:
            if session:
                await to_the_end(self.service.end(session))
            else:
                await to_the_end(self.service.end_all(self.user.name, self.name))
            self._may_hold = False
        except Refused as refused:
            self.log.warning("Could not end the session of %s: %s", self._log_name, refused)

    # -- progress --------------------------------------------------------------------------------------

    async def progress(self) -> AsyncIterator[Json]:
        """The steps of the start, each as it happens."""
        async for step in self.steps:
            yield step

    # -- certificates of users without an account -------------------------------------------------------

    async def move_certs(self, paths: Json) -> Json:
        """Internal TLS needs an account per user, which users of this spawner do not have."""
        raise Refused(500, "LocalGPUSpawner does not support JupyterHub.internal_ssl.")


def _empty_object(handler: Any) -> bool:
    """Whether the request that starts the server is one to the API whose body is {}."""
    request = getattr(handler, "request", None)
    return request is not None and request.method == "POST" and b"".join(request.body.split()) == b"{}"


def _card_names(session: Json) -> str:
    return " and ".join(f"card {card['index']}, {card['name']}" for card in session["cards"])
