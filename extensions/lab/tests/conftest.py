"""Fixtures: the service that speaks the contract, and a real Jupyter server with the extension."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from lab_service import TOKEN, Service, ServiceServer  # noqa: E402


def wait_for(condition: Callable[[], object], what: str, seconds: float = 20.0) -> object:
    """Poll until the condition is true and return what it returned; fail after a deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {seconds} s")


@contextmanager
def running_service() -> Iterator[Service]:
    """The state of a service that runs meanwhile; `service.url` is its address."""
    state = Service()
    server = ServiceServer(state)
    state.url = server.url  # type: ignore[attr-defined]
    yield state
    server.stop()


@pytest.fixture
def service() -> Iterator[Service]:
    """A service of the test's own."""
    with running_service() as state:
        yield state


@pytest.fixture(scope="module")
def hub_service() -> Iterator[Service]:
    """A service that lasts as long as the Jupyter server of the module."""
    with running_service() as state:
        yield state


def start_jupyter(folder: Path, env: dict[str, str], *options: str) -> tuple[subprocess.Popen[bytes], str, str]:
    """A real Jupyter server under the base URL of a hub's user; returns process, address and token."""
    runtime = folder / "runtime"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jupyter_server",
            "--allow-root",
            "--no-browser",
            "--port=0",
            "--ServerApp.base_url=/user/ada/",
            "--IdentityProvider.token=lab-token",
            f"--ServerApp.root_dir={folder}",
            *options,
        ],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "GPUSPAWNER"))},
            "JUPYTER_RUNTIME_DIR": str(runtime),
            "HOME": str(folder),
            "PYTHONPATH": str(HERE),
            **env,
        },
        stdout=subprocess.DEVNULL,
        stderr=(folder / "server.log").open("wb"),
    )

    def info() -> object:
        assert process.poll() is None, (folder / "server.log").read_text()
        for path in runtime.glob("jpserver-*.json"):
            try:
                return json.loads(path.read_text())
            except ValueError:
                return None
        return None

    try:
        url = wait_for(info, "the start of the Jupyter server", 60)["url"]  # type: ignore[index]
    except AssertionError:
        process.kill()
        process.wait()
        raise
    return process, str(url), "lab-token"


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that a test started."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def jupyter_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of the Jupyter server of the module."""
    return tmp_path_factory.mktemp("jupyter")


@pytest.fixture(scope="module")
def jupyter(hub_service: Service, jupyter_home: Path) -> Iterator[httpx.Client]:
    """A client of a real Jupyter server with a GPU session and a scripted driver."""
    process, url, token = start_jupyter(
        jupyter_home,
        {
            "GPUSPAWNER_SERVICE_URL": hub_service.url,  # type: ignore[attr-defined]
            "GPUSPAWNER_SESSION": "s1",
            "JUPYTERHUB_API_TOKEN": TOKEN,
        },
        "--GPUSpawnerLab.reader_class=lab_nvml.ScriptedReader",
        "--GPUSpawnerLab.sample_seconds=0.2",
    )
    with httpx.Client(base_url=url, headers={"Authorization": f"token {token}"}, timeout=30) as client:
        yield client
    stop(process)
