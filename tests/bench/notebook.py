"""A Jupyter server with the Lab extension inside a session of its own, for benchmarks of what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import websocket

from tests.support.common import free_ports, until
from tests.support.machine import SERVICE_TOKEN, Machine

TOKEN = "bench-token"


class Notebook:
    """The server, and clients of it."""

    def __init__(self, node: Machine, share: str) -> None:
        answer = node.api.post("/sessions", json={"user": "ann", "share": share})
        assert answer.status_code in (200, 201), answer.text
        self.launch = answer.json()["launch"]
        port = free_ports(1)
        self.url = f"http://127.0.0.1:{port}/user/ann/"
        self.http = httpx.Client(base_url=self.url, headers={"Authorization": f"token {TOKEN}"}, timeout=60)
        command = [sys.executable, "-m", "jupyter_server", "--no-browser", f"--port={port}", "--allow-root"]
        options = ["--ServerApp.base_url=/user/ann/", f"--IdentityProvider.token={TOKEN}"]
        self.process = subprocess.Popen(
            [*self.launch["argv_prefix"], *command, *options],
            env={
                "PATH": os.environ["PATH"],
                "HOME": self.launch["home"],
                **self.launch["env"],
                "JUPYTERHUB_API_TOKEN": SERVICE_TOKEN,
                "GPUSPAWNER_SERVICE_URL": str(node.api.base_url).rstrip("/"),
                "GPUSPAWNER_SESSION": answer.json()["session"]["id"],
            },
            cwd=self.launch["home"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until(self._answers, 60, "the Jupyter server to answer")
        self.pid = self._server_pid(port)

    def _answers(self) -> bool:
        assert self.process.poll() is None, "the Jupyter server has ended"
        try:
            return self.http.get("gpuspawner/api/status").status_code == 200
        except httpx.TransportError:
            return False

    def _server_pid(self, port: int) -> int:
        """Of the server itself, below the launcher and its guard."""
        below = {self.process.pid}
        found = []
        for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                words = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if parent in below:
                below.add(int(path.name))
                if words.startswith(os.fsencode(sys.executable)) and f"--port={port}".encode() in words:
                    found.append(int(path.name))
        assert found, "the server's process was not found"
        return found[-1]

    def cpu_seconds(self) -> float:
        """What the server has used of the processors so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def watch(self, viewer: str, seconds: float) -> None:
        """What an open panel asks for; 0 seconds: it was closed."""
        answer = self.http.post(
            "gpuspawner/api/watch", json={"viewer": viewer, "seconds": seconds, "detail": bool(seconds)}
        )
        assert answer.status_code == 200, answer.text

    def socket(self, path: str) -> websocket.WebSocket:
        """A WebSocket of the server."""
        url = self.url.replace("http", "ws", 1) + path
        return websocket.create_connection(url, timeout=60, header=[f"Authorization: token {TOKEN}"])

    def kernel(self) -> Kernel:
        """A new kernel."""
        answer = self.http.post("api/kernels", json={"name": "python3"})
        assert answer.status_code == 201, answer.text
        identity = answer.json()["id"]
        return Kernel(self.socket(f"api/kernels/{identity}/channels"))

    def close(self) -> None:
        """End the server and all it started: the launcher takes its session along."""
        self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Kernel:
    """A kernel behind the server's WebSocket, as a notebook has it."""

    def __init__(self, socket: websocket.WebSocket) -> None:
        self.socket = socket
        self.session = uuid.uuid4().hex

    def execute(self, code: str) -> None:
        """Run code and wait for its execute_reply."""
        identity = uuid.uuid4().hex
        header = {"msg_id": identity, "msg_type": "execute_request", "session": self.session, "username": ""}
        header |= {"version": "5.3", "date": "2026-01-01T00:00:00Z"}
        content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
        message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}
        self.socket.send(json.dumps(message))
        while True:
            answer: dict[str, Any] = json.loads(self.socket.recv())
            if answer["msg_type"] == "execute_reply" and answer["parent_header"].get("msg_id") == identity:
                assert answer["content"]["status"] == "ok", answer["content"]
                return


class Panels:
    """Open panels: each has the events' WebSocket and renews its watch, as the browser's does (`model.ts`)."""

    WATCH_SECONDS = 60.0
    RENEW_SECONDS = 45.0

    def __init__(self, notebook: Notebook, count: int) -> None:
        self.notebook = notebook
        self.names = [f"panel-{number}" for number in range(count)]
        self.sockets = [notebook.socket("api/events/subscribe") for _ in range(count)]
        self.events = 0
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(one,), daemon=True) for one in self.sockets]
        for thread in self._threads:
            thread.start()

    def open(self) -> None:
        """Open every panel."""
        for name in self.names:
            self.notebook.watch(name, self.WATCH_SECONDS)

    def look(self, seconds: float) -> None:
        """Look for so long at the panels that are open: each renews its watch, one after the other."""
        pause = self.RENEW_SECONDS / len(self.names)
        for turn in range(int(seconds / pause)):
            self._closed.wait(pause)
            self.notebook.watch(self.names[turn % len(self.names)], self.WATCH_SECONDS)

    def look_away(self) -> None:
        """Close every panel; the sockets stay, as JupyterLab's own."""
        for name in self.names:
            self.notebook.watch(name, 0)

    def close(self) -> None:
        """Close the sockets."""
        for socket in self.sockets:
            socket.shutdown()
        for thread in self._threads:
            thread.join(10)

    def _read(self, socket: websocket.WebSocket) -> None:
        try:
            while socket.recv():
                self.events += 1
        except (websocket.WebSocketException, OSError):
            return


@contextmanager
def notebook(node: Machine, share: str) -> Iterator[Notebook]:
    """A Jupyter server in a session with this share."""
    made = Notebook(node, share)
    try:
        yield made
    finally:
        made.close()
