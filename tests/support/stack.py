"""Everything that `make up` starts, with a state folder and ports of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from .common import free_ports, until

_STARTED_WITHIN = 90.0
#: The environment that the stack runs in; another one has another version of JupyterHub (`make test-hub5`).
PYTHON = os.environ.get("GPUSPAWNER_TEST_PYTHON") or sys.executable


class Browser(httpx.Client):
    """Somebody signed in at the hub, without a browser's pages: cookies, and the XSRF token where it is asked for."""

    def sign_in(self, user: str, password: str) -> None:
        """Sign in by the login form."""
        self.get("/hub/login")
        answer = self.post("/hub/login", data={"username": user, "password": password, "_xsrf": self.xsrf("/hub/")})
        assert answer.status_code == 302, answer.text[:500]

    def xsrf(self, path: str) -> str:
        """The XSRF token for pages below `path`."""
        found = [cookie.value for cookie in self.cookies.jar if cookie.name == "_xsrf" and cookie.path == path]
        assert found, f"no XSRF cookie for {path}"
        return found[-1] or ""


class Stack:
    """`gpuspawner up` as a process, or `command`. `output` is what it printed so far."""

    def __init__(
        self, state: Path, cards: str, env: dict[str, str] | None = None, command: Sequence[str] | None = None
    ) -> None:
        self.state = state
        self.start_command = command or [PYTHON, "-m", "gpuspawner.cli", "up"]
        self.port = free_ports(4)
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = ""
        self.env = {
            **os.environ,
            "GPUSPAWNER_STATE": str(state),
            "GPUSPAWNER_PORT": str(self.port),
            "GPUSPAWNER_CARDS": "simulated",
            "GPUSPAWNER_SIMULATED": cards,
            **(env or {}),
        }
        self.process: subprocess.Popen[str] | None = None

    def up(self) -> None:
        """Start it, and wait until it has printed the address."""
        self.process = subprocess.Popen(
            self.start_command,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        self.output = ""
        until(self._welcomed, _STARTED_WITHIN, "the stack to come up")

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.output += line

    def _welcomed(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output
        return "Sign in as" in self.output

    def down(self) -> None:
        """End it as Ctrl-C does; sessions run on."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
        self.process = None

    def stop(self) -> str:
        """End everything, sessions included; what was printed."""
        return self.command("stop")

    def command(self, *words: str) -> str:
        """What `gpuspawner` prints when run with `words`; it must succeed."""
        done = subprocess.run(
            [PYTHON, "-m", "gpuspawner.cli", *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def secret(self, name: str) -> str:
        """A secret of this stack."""
        return (self.state / "secrets" / name).read_text().strip()

    @property
    def user_password(self) -> str:
        """The password that every name signs in with."""
        return self.secret("user_password")

    def service(self) -> httpx.Client:
        """A client of the service that asks as the hub."""
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port + 3}/services/gpuspawner/api/v1",
            headers={"Authorization": f"Bearer {self.secret('service_token')}"},
            transport=httpx.HTTPTransport(uds=str(self.state / "run" / "service.sock")),
            timeout=30,
        )

    @contextmanager
    def browser(self, user: str | None = None) -> Iterator[Browser]:
        """A client of the public address; signed in if a user is named."""
        with Browser(base_url=self.url, timeout=60) as client:
            if user is not None:
                client.sign_in(user, self.secret("admin_password" if user == "admin" else "user_password"))
            yield client

    def token(self, user: str, **options: Any) -> str:
        """An API token of a user, as their token page makes it."""
        with self.browser(user) as client:
            client.get("/hub/home")
            answer = client.post(
                f"/hub/api/users/{user}/tokens",
                json=options,
                headers={"X-XSRFToken": client.xsrf("/hub/"), "Referer": f"{self.url}/hub/token"},
            )
            assert answer.status_code == 201, answer.text
            return str(answer.json()["token"])

    def pid_of(self, part: str) -> int:
        """The process id of a running part: hub, proxy, service or simulation."""
        text = (self.state / "run" / f"{part}.pid").read_text()
        found = re.match(r"\d+", text)
        assert found, text
        return int(found.group())

    def end(self) -> None:
        """End everything and everyone, whatever state it is in."""
        self.down()
        self.stop()


@contextmanager
def stack(state: Path, cards: str = "2*h100-80gb", env: dict[str, str] | None = None) -> Iterator[Stack]:
    """A stack that is up, ended with all its sessions."""
    made = Stack(state, cards, env)
    try:
        made.up()
        yield made
    finally:
        made.end()
