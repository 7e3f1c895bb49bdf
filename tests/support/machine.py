"""One machine of our own: simulated cards and the real service, as processes, with a state folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from gpuspawner.node.leftovers import remove_cgroups
from gpuspawner.node.limits import launch as session_launch
from gpuspawner.simulation import SimulatedCards

from .common import free_ports, until

SERVICE_TOKEN = "t" * 64

# Reads an expression or statement a line, runs it, and answers with JSON: what a kernel does, without Jupyter.
_PROGRAM = """
import json, sys, traceback
names = {}
for line in sys.stdin:
    source = json.loads(line)
    try:
        try:
            answer = {"value": eval(compile(source, "<cell>", "eval"), names)}
        except SyntaxError:
            exec(compile(source, "<cell>", "exec"), names)
            answer = {"value": None}
        text = json.dumps(answer)
    except BaseException:
        text = json.dumps({"error": traceback.format_exc()})
    print(text, flush=True)
"""

#: Names for programs that use card memory by the public cuda-bindings library.
CUDA = """
import os
from cuda.bindings import driver
assert driver.cuInit(0)[0] == 0
device = driver.cuDeviceGet(0)[1]
error, context = driver.cuDevicePrimaryCtxRetain(device)
assert error == 0, error
assert driver.cuCtxSetCurrent(context)[0] == 0
pointers = []
def info():
    error, free, total = driver.cuMemGetInfo()
    assert error == 0, error
    return [int(free), int(total)]
def allocate(size):
    error, pointer = driver.cuMemAlloc(size)
    if error == 0:
        pointers.append(pointer)
    return error.name
def free_all():
    while pointers:
        assert driver.cuMemFree(pointers.pop())[0] == 0
"""


class SessionProgram:
    """A program inside a session, asked line by line."""

    def __init__(self, launch: dict[str, Any], *, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*launch["argv_prefix"], sys.executable, "-u", "-c", _PROGRAM],
            env={"PATH": os.environ["PATH"], "HOME": launch["home"], **launch["env"], **(env or {})},
            cwd=launch["home"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __call__(self, source: str) -> Any:
        """The value of an expression, or None for statements. AssertionError with the traceback if it raised."""
        self.send(source)
        return self.receive()

    def send(self, source: str) -> None:
        """Ask, and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(source) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        """The answer to what was sent first and not yet answered."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended with {self.process.wait()}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


class Machine:
    """The machine. `api` speaks to its service as the hub."""

    def __init__(
        self,
        state: Path,
        cards: str,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timed: bool = False,
    ) -> None:
        self.state = state
        self.prefix = prefix
        self._env = dict(env or {})
        self._folder = tempfile.TemporaryDirectory(prefix="gpuspawner-cards-")
        Path(self._folder.name).chmod(0o755)
        self.cards = SimulatedCards(cards, timed=timed, socket=Path(self._folder.name) / "simulation.sock")
        self.port = free_ports(4)
        self.service: subprocess.Popen[bytes] | None = None
        self.programs: list[SessionProgram] = []
        (state / "secrets").mkdir(parents=True)
        (state / "secrets" / "service_token").write_text(SERVICE_TOKEN)
        self.api = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port + 3}/services/gpuspawner/api/v1",
            headers={"Authorization": f"Bearer {SERVICE_TOKEN}"},
            timeout=30,
        )

    def env(self) -> dict[str, str]:
        """The environment that its services run in."""
        return {
            **os.environ,
            **self.cards.env(),
            "GPUSPAWNER_STATE": str(self.state),
            "GPUSPAWNER_PORT": str(self.port),
            **self._env,
        }

    def start_service(self) -> None:
        """Start the service, and wait until it answers."""
        log = (self.state / "service.log").open("ab")
        with log:
            self.service = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "gpuspawner.service"], env=self.env(), stdout=log, stderr=log
            )
        until(self._answers, timeout=90, what="the service to answer")

    def _answers(self) -> bool:
        assert self.service is not None
        assert self.service.poll() is None, (self.state / "service.log").read_text()
        try:
            return self.api.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def kill_service(self) -> None:
        """End the service as kill -9 does."""
        assert self.service is not None
        self.service.kill()
        self.service.wait()

    def kill_cards(self) -> None:
        """End the driver as kill -9 does, and start it again: whatever was on the cards is gone."""
        os.kill(self.cards.pid, signal.SIGKILL)
        self.cards.stop()
        self.cards.socket.unlink(missing_ok=True)
        self.cards.start()

    def start(self, user: str, share: str, server: str = "", **more: object) -> tuple[dict[str, Any], SessionProgram]:
        """A session with a program in it that can use its card. `more` of the request's body by name."""
        answer = self.api.post("/sessions", json={"user": user, "server": server, "share": share, **more})
        assert answer.status_code in (200, 201), answer.text
        program = SessionProgram(answer.json()["launch"])
        self.programs.append(program)
        program(CUDA)
        return answer.json()["session"], program

    def clear(self) -> None:
        """End every session, and wait until nothing is held: the next test finds it as new, but for its ledger."""
        for program in self.programs:
            program.kill()
        self.programs.clear()
        for session in self.api.get("/sessions").json()["sessions"]:
            self.api.delete(f"/sessions/{session['id']}")
        until(lambda: not self.api.get("/sessions").json()["sessions"], 60, "every session's end")

    def free_eighths(self) -> int:
        """How many eighths could be started now, over all cards."""
        offers = self.api.get("/offers").json()["offers"]
        return sum(offer["free_places"] for offer in offers if offer["share"] == "1/8")

    def close(self) -> None:
        """End everything that was started, sessions first."""
        self.api.close()
        for program in self.programs:
            program.kill()
        if self.service is not None and self.service.poll() is None:
            self.service.terminate()
            self.service.wait(30)
        sessions = self.state / "node" / "sessions"
        for folder in sessions.iterdir() if sessions.is_dir() else ():
            session_launch.end_session(folder, timeout=10)
        self.cards.__exit__(None, None, None)
        remove_cgroups(self.state)
        self._folder.cleanup()


@contextmanager
def machine(
    state: Path,
    cards: str = "2*h100-80gb",
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timed: bool = False,
) -> Iterator[Machine]:
    """A machine with the service running, ended with everything on it. `prefix` goes before the service's command,
    `env` into its environment; on `timed` cards launches take time."""
    made = Machine(state, cards, prefix, env=env, timed=timed)
    try:
        made.cards.__enter__()
        made.start_service()
        yield made
    finally:
        made.close()
