"""Containers of images that buildah has built, run by runc as a node runs them: not as root, with a root file system
that cannot be written and no capabilities, and with a share of a simulated card as the node agent gives it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gpuspawner.node.dra import cdi, install
from gpuspawner.node.dra.claims import Part, Prepared
from gpuspawner.node.limits import abi, launch, measure

from .common import free_ports, until
from .hub import ServerKernel
from .limits import Cards, cards

TOKEN = "image-token"
BASE_URL = "/user/ann/"
HOME = "/home/jovyan"
GIB = 1 << 30


def why_not(image: str) -> str | None:
    """Why a container of an image cannot be run here; None: it can."""
    if os.geteuid():
        return "containers are run as root"
    for program in ("buildah", "runc"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    found = subprocess.run(["buildah", "inspect", "--type", "image", image], capture_output=True, check=False)
    return None if found.returncode == 0 else f"{image} is not built: make image-NAME"


@dataclass(frozen=True)
class Share:
    """A share of a simulated card. `edits`: what CDI has a container runtime add to a container. `limit_bytes`: what
    programs in it may use, and `limits` the file that says so."""

    edits: Mapping[str, Any]
    limits: Path
    card: str
    context_bytes: int
    limit_bytes: int

    def resize(self, eighths: int, limit_bytes: int) -> None:
        """What the node agent writes when the share changes."""
        abi.write_limits(self.limits, [abi.CardLimit(self.card, eighths, limit_bytes, self.context_bytes)])


@contextmanager
def share(folder: Path, eighths: int, limit_bytes: int) -> Iterator[tuple[Share, Cards]]:
    """A share on a card of our own, with the files and mounts that the node agent makes for a claim."""
    with cards(folder / "cards", "1*h100-80gb") as made:
        card = made.uuids()[0]
        files, shims = install.libraries(folder / "lib", made.driver())
        for each in (folder, folder / "lib", *(folder / "lib").iterdir()):
            each.chmod(0o755)
        session = folder / "session"
        usage, limits = launch.usage_path(session), launch.limit_path(session)
        for path in (usage, limits):
            path.parent.mkdir(mode=0o755, parents=True)
        abi.create_usage(usage, None, None)
        usage.chmod(0o666)
        part = Part("card", "node", "card-0", uuid.uuid4().hex, eighths)
        prepared = Prepared("default", "ann", uuid.uuid4().hex, uuid.uuid4().hex, (part,), ())
        spec = cdi.spec(prepared, session, files, shims, [card])
        context = measure.context_bytes(made.driver())[card]
        found = Share(spec["devices"][0]["containerEdits"], limits, card, context, limit_bytes)
        found.resize(eighths, limit_bytes)
        yield found, made


class Container:
    """A container that runs. `home` is its user's, on the machine."""

    def __init__(
        self,
        image: str,
        folder: Path,
        command: Sequence[str],
        given: Share | None = None,
        env: Mapping[str, str] | None = None,
        mounts: Mapping[Path, str] | None = None,
        entrypoint: Sequence[str] = (),
    ) -> None:
        self.id = f"gpuspawner-test-{uuid.uuid4().hex[:12]}"
        self.home = folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        os.chown(self.home, 1000, 1000)
        self.log = folder / "container.log"
        self._made = _run("buildah", "from", image)
        try:
            root = _run("buildah", "mount", self._made)
            config = self._config(image, root, command, given, env or {}, mounts or {}, entrypoint)
            (folder / "config.json").write_text(json.dumps(config))
            with self.log.open("ab") as log:
                words = ["runc", "run", "--bundle", str(folder), self.id]
                self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        except BaseException:
            _run("buildah", "rm", self._made)
            raise

    def _config(
        self,
        image: str,
        root: str,
        command: Sequence[str],
        given: Share | None,
        env: Mapping[str, str],
        mounts: Mapping[Path, str],
        entrypoint: Sequence[str],
    ) -> dict[str, Any]:
        """The runtime's configuration: the image's own, and what a pod on a node has."""
        own = json.loads(_run("buildah", "inspect", "--type", "image", image))["OCIv1"]["config"]
        config: dict[str, Any] = json.loads(_SPEC)
        user, _, group = own["User"].partition(":")
        words = [*(entrypoint or own.get("Entrypoint") or []), *(command or own.get("Cmd") or [])]
        edits = given.edits if given is not None else {}
        config["process"] |= {
            "user": {"uid": int(user), "gid": int(group)},
            "args": words,
            "cwd": own["WorkingDir"],
            "env": [*own["Env"], *edits.get("env", []), *(f"{name}={value}" for name, value in env.items())],
        }
        config["hostname"] = "session"
        config["root"] = {"path": root, "readonly": True}
        added = [{"source": str(self.home), "destination": HOME, "options": ["rbind", "rw"]}]
        added += [
            {"source": str(path), "destination": place, "options": ["rbind", "ro"]} for path, place in mounts.items()
        ]
        hosts = self.home.with_name("hosts")
        hosts.write_text("127.0.0.1 localhost session\n")
        added.append({"source": str(hosts), "destination": "/etc/hosts", "options": ["rbind", "ro"]})
        for each in edits.get("mounts", []):
            added.append({"source": each["hostPath"], "destination": each["containerPath"], "options": each["options"]})
        config["mounts"] += [{"type": "bind", **each} for each in added]
        return config

    def run(self, *command: str, user: str = "1000:1000") -> str:
        """What a command in the container prints. AssertionError with its words where it fails."""
        done = subprocess.run(
            ["runc", "exec", "--user", user, self.id, *command],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def said(self) -> str:
        """What it printed."""
        return self.log.read_text(errors="replace")

    def close(self) -> None:
        """End it as a node does, with SIGTERM first, and remove it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                subprocess.run(["runc", "kill", self.id, "KILL"], capture_output=True, check=False)
                self.process.wait(30)
        subprocess.run(["runc", "delete", "--force", self.id], capture_output=True, check=False)
        _run("buildah", "rm", self._made)


class Lab(Container):
    """JupyterLab in a container, below the path that a hub would give it."""

    def __init__(self, image: str, folder: Path, given: Share | None = None, **more: Any) -> None:
        port = free_ports(1)
        self.url = f"http://127.0.0.1:{port}{BASE_URL}"
        self.headers = {"Authorization": f"token {TOKEN}"}
        command = ["jupyter", "lab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
        command += [f"--ServerApp.base_url={BASE_URL}", f"--IdentityProvider.token={TOKEN}"]
        super().__init__(image, folder, more.pop("command", command), given, **more)

    def ready(self) -> bool:
        """Whether /lab is answered."""
        assert self.process.poll() is None, self.said()
        try:
            return httpx.get(f"{self.url}lab", headers=self.headers, timeout=30).status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path: str) -> Any:
        """The answer of its API."""
        answer = httpx.get(f"{self.url}{path}", headers=self.headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def kernel(self) -> ServerKernel:
        """A new kernel."""
        return ServerKernel(self.url, self.headers)


@contextmanager
def lab(image: str, folder: Path, given: Share | None = None, **more: Any) -> Iterator[Lab]:
    """JupyterLab in a container, ready."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Lab(image, folder, given, **more)
    try:
        until(made.ready, 180, lambda: f"JupyterLab: {made.said()}")
        yield made
    finally:
        made.close()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


#: What a node gives every container: its own processes, files and names, the machine's network, no capabilities.
_SPEC = json.dumps(
    {
        "ociVersion": "1.0.2",
        "process": {"noNewPrivileges": True, "capabilities": {}},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
            {
                "destination": "/dev/pts",
                "type": "devpts",
                "source": "devpts",
                "options": ["newinstance", "ptmxmode=0666"],
            },
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmp", "options": ["nosuid", "nodev", "mode=1777"]},
        ],
        "linux": {"namespaces": [{"type": each} for each in ("pid", "ipc", "uts", "mount")]},
    }
)
