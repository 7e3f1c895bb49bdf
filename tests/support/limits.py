"""Sessions started by the real launcher on simulated cards, and what runs in them."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpuspawner.node.limits import abi, build, launch

ROOT = Path(__file__).parents[2]
SIMULATION = Path(os.environ.get("GPUSPAWNER_TEST_SIMULATION", ROOT / "gpuspawner" / "simulation" / "bin"))
PYTHON_PLACES = [Path(sys.prefix), Path(sys.base_prefix), ROOT]
MANAGED_UID = 1900000001

if "GPUSPAWNER_TEST_LIMITS" in os.environ:  # other builds of the same parts: tests/c/test_sanitizers.py
    for _name in ("LAUNCHER", "SHIM_CUDA", "SHIM_NVML", "HOST_CUDA", "HOST_NVML"):
        setattr(build, _name, Path(os.environ["GPUSPAWNER_TEST_LIMITS"]) / getattr(build, _name).name)

# Reads Python by the line, answers with JSON: what a kernel does, without Jupyter.
SERVER = """
import json, sys
names = {}
for line in sys.stdin:
    source = json.loads(line)
    try:
        try:
            code = compile(source, "<cell>", "eval")
        except SyntaxError:
            exec(compile(source, "<cell>", "exec"), names)
            answer = None
        else:
            answer = eval(code, names)
        text = json.dumps({"value": answer}, default=str)
    except BaseException as error:
        text = json.dumps({"error": repr(error)})
    print(text, flush=True)
"""

# cuda-bindings, an ordinary client of the driver API.
CUDA = """
from cuda.bindings import driver as cu
assert int(cu.cuInit(0)[0]) == 0
error, context = cu.cuDevicePrimaryCtxRetain(0)
assert int(error) == 0, error
assert int(cu.cuCtxSetCurrent(context)[0]) == 0
def info():
    error, free, total = cu.cuMemGetInfo()
    assert int(error) == 0, error
    return [int(free), int(total)]
def allocate(size):
    error, pointer = cu.cuMemAlloc(size)
    return [int(error), int(pointer) if int(error) == 0 else 0]
def release(pointer):
    return int(cu.cuMemFree(pointer)[0])
def fill(sizes):
    "Takes as much as there is, by falling sizes; the sum of what was got."
    got = 0
    for size in sizes:
        while allocate(size)[0] == 0:
            got += size
    return got
"""


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """Poll until `condition` is true, and return what it returned."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.005)
    return value


class Cards:
    """A device daemon of our own with its cards."""

    def __init__(self, folder: Path, cards: str) -> None:
        self.socket = folder / "simulation.sock"
        self.process = subprocess.Popen(
            [SIMULATION / "gpuspawner-simd", "--socket", self.socket, "--cards", cards],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready")
        #: A program on the host, without a shim.
        self.observer = Process(
            subprocess.Popen(
                [sys.executable, "-u", "-c", SERVER],
                env=self.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self.observer.run(
            "import sys, pynvml as n\n"
            "n.nvmlInit()\n"
            "def card(i): return n.nvmlDeviceGetHandleByIndex(i)\n"
            "def used(i): return n.nvmlDeviceGetMemoryInfo(card(i)).used"
        )

    def driver(self) -> build.DriverFiles:
        return build.DriverFiles(
            SIMULATION / "libcuda.so.1",
            SIMULATION / "libnvidia-ml.so.1",
            [self.socket],
            {"GPUSPAWNER_SIM_SOCKET": str(self.socket)},
        )

    def environment(self) -> dict[str, str]:
        """For a program outside all sessions."""
        return os.environ | {"GPUSPAWNER_SIM_SOCKET": str(self.socket), "LD_LIBRARY_PATH": str(SIMULATION)}

    def used(self, index: int = 0) -> int:
        """Bytes of the card in use, as the driver itself sees it."""
        return int(self.observer.run(f"used({index})"))

    def uuids(self) -> list[str]:
        return list(self.observer.run("[n.nvmlDeviceGetUUID(card(i)) for i in range(n.nvmlDeviceGetCount())]"))

    def close(self) -> None:
        self.observer.close()
        self.process.terminate()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def cards(folder: Path, spec: str = "2*h100-80gb") -> Iterator[Cards]:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    made = Cards(folder, spec)
    try:
        yield made
    finally:
        made.close()


class Process:
    """A program in a session that runs Python by the line."""

    def __init__(self, process: subprocess.Popen[str], stderr: Path | None = None) -> None:
        self.process = process
        self.stderr = stderr
        self.read = b""

    def start(self, source: str) -> None:
        """Send a line without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(source) + "\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = 60.0) -> Any:
        assert self.process.stdout is not None
        # Read from the descriptor: two answers may come at once, and a buffer would hide the second from select().
        deadline = time.monotonic() + seconds
        while b"\n" not in self.read:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no answer within {seconds} s"
            some = os.read(self.process.stdout.fileno(), 1 << 16)
            if not some:
                break
            self.read += some
        line, _, self.read = self.read.partition(b"\n")
        assert line, f"the program ended with {self.process.wait(20)}: {self.errors()}"
        found = json.loads(line)
        assert "error" not in found, found["error"]
        return found["value"]

    def run(self, source: str) -> Any:
        self.start(source)
        return self.answer()

    def errors(self) -> str:
        return self.stderr.read_text() if self.stderr is not None else ""

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


class Session:
    """One session: its folder, its limits, and the programs started in it."""

    def __init__(self, state: Path, name: str, driver: build.DriverFiles, uid: int | None) -> None:
        self.state = state
        self.folder = state / "node" / name
        self.home = state / "users" / name
        self.plan = launch.SessionPlan(
            self.folder, self.home, uid, uid, name, driver, expose=PYTHON_PLACES, hide=[state]
        )
        self.launch = launch.prepare(self.plan)
        self.processes: list[Process] = []
        self.popens: list[subprocess.Popen[str]] = []

    def limit(self, *limits: abi.CardLimit) -> None:
        abi.write_limits(launch.limit_path(self.folder), list(limits))

    def usage(self) -> list[abi.ProcessUsage]:
        return abi.read_usage(launch.usage_path(self.folder))

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, **self.launch.env, **options.pop("env", {})}
        environment.pop("GPUSPAWNER_STATE", None)
        process = subprocess.Popen(
            [*self.launch.argv_prefix, *command], env=environment, cwd=self.home, text=True, **options
        )
        self.popens.append(process)
        return process

    def server(self, first: str = "") -> Process:
        """A program in the session that takes Python by the line; `first` is run before."""
        errors = self.state / f"stderr-{len(self.popens)}"
        with errors.open("w") as file:
            process = self.popen(
                [sys.executable, "-u", "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
            )
        made = Process(process, errors)
        self.processes.append(made)
        if first:
            made.run(first)
        return made

    def output(self, command: list[str], **options: Any) -> str:
        """What a command in the session prints; it has to end well."""
        process = self.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        out, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        return out

    def close(self) -> None:
        for process in self.processes:
            process.close()
        for popen in self.popens:
            if popen.poll() is None:
                popen.kill()
            popen.wait(20)
        launch.end_session(self.folder, 0)
        wait_until(lambda: not launch.session_alive(self.folder), "the session's end")


@contextmanager
def session(
    state: Path, driver: build.DriverFiles, name: str = "ada", uid: int | None = MANAGED_UID
) -> Iterator[Session]:
    if os.geteuid() != 0:
        uid = None
    made = Session(state, name, driver, uid)
    try:
        yield made
    finally:
        made.close()


class Outside:
    """Programs with the shim and limits of their own, but without a namespace: as in an advisory session."""

    def __init__(self, folder: Path, made: Cards) -> None:
        self.folder = folder
        self.limits, self.usage_file = folder / "limit", folder / "usage"
        self.environment = made.environment() | {
            "LD_LIBRARY_PATH": str(build.host_flavour(made.driver(), folder / "lib")),
            "GPUSPAWNER_LIMITS": str(self.limits),
            "GPUSPAWNER_USAGE": str(self.usage_file),
        }
        abi.create_usage(self.usage_file)
        self.processes: list[Process] = []

    def limit(self, *limits: abi.CardLimit) -> None:
        abi.write_limits(self.limits, list(limits))

    def usage(self) -> list[abi.ProcessUsage]:
        return abi.read_usage(self.usage_file)

    def server(self, first: str = "", **environment: str) -> Process:
        errors = self.folder / f"stderr-{len(self.processes)}"
        with errors.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", SERVER],
                env=self.environment | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        made = Process(process, errors)
        self.processes.append(made)
        if first:
            made.run(first)
        return made

    def close(self) -> None:
        for process in self.processes:
            process.close()


@contextmanager
def outside(folder: Path, made: Cards) -> Iterator[Outside]:
    folder.mkdir(parents=True, exist_ok=True)
    found = Outside(folder, made)
    try:
        yield found
    finally:
        found.close()


def fake_driver(folder: Path) -> build.DriverFiles:
    """Two libraries that are no driver at all, for tests that need none."""
    source = folder / "empty.c"
    source.write_text("int gpuspawner_test_nothing;\n")
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is needed"
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / name, source, f"-Wl,-soname,{name}"], check=True)
    return build.DriverFiles(folder / "libcuda.so.1", folder / "libnvidia-ml.so.1")
