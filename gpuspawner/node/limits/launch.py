"""How a session is started: what it may see, and how strongly its limits hold.

`prepare` decides (it writes a plan), `gpuspawner-launch` does. On a machine that allows namespaces the grade is
*guarded*; otherwise *advisory*, with the reason.
"""

from __future__ import annotations

import functools
import os
import pwd
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from . import abi, build, ldcache
from .build import DriverFiles
from .processes import ALIVE, end_session, owners, session_alive, session_pids, was_started

__all__ = [
    "DriverFiles",
    "Grade",
    "Launch",
    "LaunchError",
    "SessionPlan",
    "end_session",
    "limit_path",
    "owners",
    "prepare",
    "probe",
    "probe_reason",
    "session_alive",
    "session_pids",
    "usage_path",
    "was_started",
]

Grade = Literal["kernel", "guarded", "advisory"]

INSIDE = Path("/run/gpuspawner")
"""Where a session finds its limits, its usage file, the shim and the driver."""

_SCRATCH = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
_PROBE_TIMEOUT_S = 10


class LaunchError(RuntimeError):
    """A session that cannot be started as asked. The message names the field, what was given and what is allowed."""


@dataclass
class SessionPlan:
    """One session to start.

    `session_dir`: the node's own folder for it. `home`: the user's home, the one place in which the session may
    write. `uid`, `gid`: whom it runs as; None: whoever starts it. `expose`: what must be readable inside though
    something above it may be closed to `uid` or hidden (the Python installation, the project). `hide`: what must not
    be seen (the state directory). `cgroup`: the folder of the cgroup that it must run in. `groups`: further groups that
    it needs for device files, where it runs as another user than whoever starts it.
    """

    session_dir: Path
    home: Path
    uid: int | None
    gid: int | None
    user_name: str
    driver: DriverFiles
    expose: list[Path] = field(default_factory=list)
    hide: list[Path] = field(default_factory=list)
    cgroup: str | None = None
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launch:
    """`argv_prefix` goes before the server's command, `env` into its environment. `reason`: why it is not better
    than `grade`.
    """

    argv_prefix: list[str]
    env: dict[str, str]
    grade: Grade
    reason: str | None = None


def limit_path(session_dir: Path) -> Path:
    """Where the node writes the session's limits."""
    return session_dir / "limit" / "limit"


def usage_path(session_dir: Path) -> Path:
    """Where the session's processes count what they use."""
    return session_dir / "usage" / "usage"


def notice_path(session_dir: Path) -> Path:
    """Where the session finds that it is to save, while it is."""
    return limit_path(session_dir).with_name("notice")


def show_notice(session_dir: Path, text: str | None) -> None:
    """Show the session a notice, whole or not at all; None: none. One that is shown already stays as it is, so that
    nobody takes it for a new one."""
    path = notice_path(session_dir)
    if text is None:
        path.unlink(missing_ok=True)
    elif not path.exists() or path.read_text() != text:
        _write(path, text.encode(), 0o644)


@functools.cache
def _probe() -> tuple[Grade, str | None]:
    build.require(build.LAUNCHER)
    try:
        done = subprocess.run(
            [build.LAUNCHER, "--probe"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "advisory", f"the launcher cannot be tried: {error}"
    if done.returncode == 0:
        return "guarded", None
    said = done.stderr.strip().splitlines() or [f"the launcher ended with {done.returncode}"]
    return "advisory", said[-1].removeprefix("gpuspawner-launch: ")


def probe() -> Grade:
    """The best grade that a session started by us on this machine gets. Tried for real once, then remembered."""
    return _probe()[0]


def probe_reason() -> str | None:
    """Why `probe` is only advisory; None where it is not."""
    return _probe()[1]


def prepare(plan: SessionPlan) -> Launch:
    """Write what the launcher needs into the session's folder, and say how the server is to be started."""
    _check(plan)
    grade, reason = _probe()
    uid, gid = _ids(plan)
    _make_places(plan, uid, gid)
    words: list[str] = ["alive", str(plan.session_dir / ALIVE), "home", str(plan.home)]
    if plan.uid is not None:
        words += ["uid", str(uid), "gid", str(gid)]
        words += [word for group in plan.groups for word in ("group", str(group))]
    if plan.cgroup is not None:
        words += ["cgroup", plan.cgroup]
    env = {"HOME": str(plan.home), "USER": plan.user_name, "LOGNAME": plan.user_name}
    if grade == "advisory":
        words += ["mode", "advisory"]
        lib = build.host_flavour(plan.driver, plan.session_dir / "lib")
        env |= plan.driver.env
        env["GPUSPAWNER_LIMITS"] = str(limit_path(plan.session_dir))
        env["GPUSPAWNER_USAGE"] = str(usage_path(plan.session_dir))
        env["GPUSPAWNER_PREEMPTION_FILE"] = str(notice_path(plan.session_dir))
        _check_reachable(plan, uid, gid)
    else:
        words += ["mode", "namespaces", *_operations(plan, uid, gid)]
        lib = INSIDE / "lib"
        env["GPUSPAWNER_PREEMPTION_FILE"] = str(INSIDE / "limits" / notice_path(plan.session_dir).name)
        inside = {str(path): str(_extra_place(path)) for path in plan.driver.extra}
        env |= {name: inside.get(value, value) for name, value in plan.driver.env.items()}
        if uid == 0:
            grade, reason = "advisory", "the session runs as root, whom file permissions do not hold"
    env["LD_LIBRARY_PATH"] = str(lib)
    plan_file = plan.session_dir / "launch.plan"
    _write(plan_file, "".join(f"{word}\0" for word in words).encode(), 0o600)
    return Launch([str(build.LAUNCHER), "--plan", str(plan_file), "--"], env, grade, reason)


def _check(plan: SessionPlan) -> None:
    for name in ("session_dir", "home"):
        path = getattr(plan, name)
        if not path.is_absolute() or "\0" in str(path):
            raise LaunchError(f"{name}: given {str(path)!r}, allowed is an absolute path")
    if not plan.user_name or any(c in plan.user_name for c in ":\n\0/"):
        raise LaunchError(f"user_name: given {plan.user_name!r}, allowed is a name without ':', '/' and line ends")
    if os.geteuid() != 0 and plan.uid not in (None, os.geteuid()):
        raise LaunchError(f"uid: given {plan.uid}, allowed is {os.geteuid()} (only root can start sessions of others)")
    if plan.home == plan.session_dir or plan.home in plan.session_dir.parents:
        raise LaunchError(f"session_dir: given {plan.session_dir}, allowed is a folder outside the home {plan.home}")
    for name, library in (("driver.cuda", plan.driver.cuda), ("driver.nvml", plan.driver.nvml)):
        if library is not None and not library.is_file():
            raise LaunchError(f"{name}: given {library}, allowed is the path of a library that exists")


def _ids(plan: SessionPlan) -> tuple[int, int]:
    uid = os.geteuid() if plan.uid is None else plan.uid
    if plan.gid is not None:
        return uid, plan.gid
    if plan.uid is None or plan.uid == os.geteuid():
        return uid, os.getegid()
    try:
        return uid, pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid, uid


def _make_places(plan: SessionPlan, uid: int, gid: int) -> None:
    # Only the node's own user reads in here; inside the session the places appear by bind mounts.
    plan.session_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (limit_path(plan.session_dir).parent, usage_path(plan.session_dir).parent):
        folder.mkdir(mode=0o755, exist_ok=True)
    owner = (uid, gid) if os.geteuid() == 0 else (None, None)
    abi.create_usage(usage_path(plan.session_dir), *owner)
    if not plan.home.exists():
        plan.home.mkdir(mode=0o700, parents=True)
        if os.geteuid() == 0:
            os.chown(plan.home, uid, gid)


def _write(path: Path, content: bytes, mode: int) -> None:
    abi._replace(path, content, mode)


def _may_enter(path: Path, uid: int, gid: int) -> bool:
    if uid == 0:
        return True
    status = path.stat()
    if status.st_uid == uid:
        return bool(status.st_mode & 0o100)
    return bool(status.st_mode & (0o010 if status.st_gid == gid else 0o001))


def _closed_above(path: Path, uid: int, gid: int) -> Path | None:
    """The topmost folder above `path` that the session's user may not enter."""
    for folder in reversed(path.parents):
        if folder.is_dir() and not _may_enter(folder, uid, gid):
            return folder
    return None


def _check_reachable(plan: SessionPlan, uid: int, gid: int) -> None:
    for name, path in (("home", plan.home), ("session_dir", limit_path(plan.session_dir))):
        closed = _closed_above(path, uid, gid)
        if closed is not None:
            raise LaunchError(
                f"{name}: given {path}, but uid {uid} may not enter {closed}, and this machine allows no namespace"
                f" ({probe_reason()}): open that folder, or start sessions without a uid of their own"
            )


def _extra_place(path: Path) -> Path:
    return path if path.is_relative_to("/dev") else INSIDE / path.name


def _with_real(paths: list[Path]) -> list[Path]:
    """Each path as given and as it is without links, since programs know either."""
    return sorted({each for path in paths if path.exists() for each in (path.absolute(), path.resolve())})


def _operations(plan: SessionPlan, uid: int, gid: int) -> list[str]:
    expose = _with_real(plan.expose)
    covers = {path for path in _with_real([*plan.hide, plan.session_dir]) if path.is_dir()}
    files = {path for path in _with_real(plan.hide) if not path.is_dir()}
    if Path("/run/user").is_dir():  # the user's own D-Bus would start programs outside the session
        covers.add(Path("/run/user"))
    for path in [*expose, *_with_real([plan.home])]:
        closed = _closed_above(path, uid, gid)
        if closed is not None:
            covers.add(closed)
    scratch = {path for path in _SCRATCH if path.is_dir() and not path.is_symlink()}
    covers -= scratch
    hidden = covers | scratch

    def is_hidden(path: Path) -> bool:
        return path in hidden or any(parent in hidden for parent in path.parents)

    steps: list[tuple[Path, int, list[str]]] = []  # path, order at the same path, words
    steps += [(path, 0, ["cover", str(path)]) for path in covers]
    steps += [(path, 0, ["scratch", str(path)]) for path in scratch]
    steps += [(path, 1, ["bindro", "/dev/null", str(path)]) for path in files if not is_hidden(path)]
    steps += [(path, 1, ["bindro", str(path), str(path)]) for path in expose if is_hidden(path)]
    steps += [(path, 2, ["bind", str(path), str(path)]) for path in _with_real([plan.home]) if is_hidden(path)]
    steps.sort(key=lambda step: (step[0].parts, step[1]))  # parents before children
    shown: dict[Path, bool] = {}  # of the places above: whether there is more below them than we put there
    words, covered = [], []
    for path, _, step in steps:
        above = next((shown[parent] for parent in path.parents if parent in shown), True)
        if step[0] == "cover" and not above:
            continue
        shown[path] = step[0].startswith("bind")
        words += step
        covered += [path] if step[0] == "cover" else []
    words += _own_places(plan)
    words += _etc(plan, uid, gid)
    # Programs that name the driver by its own path get the shim too.
    for shim, driver, _ in plan.driver.behind():
        if not is_hidden(driver.resolve()) or any(driver.resolve().is_relative_to(path) for path in expose):
            words += ["bindro?", str(shim), str(driver.resolve())]
    for path in [*reversed(covered), INSIDE]:
        words += ["seal", str(path)]
    return [*words, "proc", "/proc"]


def _own_places(plan: SessionPlan) -> list[str]:
    build.require(build.SHIM_CUDA, build.SHIM_NVML)
    if not INSIDE.is_dir() and os.geteuid() == 0:
        INSIDE.mkdir(mode=0o755)
    words = [] if INSIDE.is_dir() else ["rebuild", str(INSIDE.parent)]
    words += ["cover", str(INSIDE)]
    words += ["bindro", str(limit_path(plan.session_dir).parent), str(INSIDE / "limits")]
    # The file alone, so that nobody in the session can put another in its place.
    words += ["bind", str(usage_path(plan.session_dir)), str(INSIDE / "usage/usage")]
    for shim, path, name in plan.driver.behind():
        words += ["bindro", str(path), str(INSIDE / "driver" / name)]
        words += ["bindro", str(shim), str(INSIDE / "lib" / name)]
        words += ["link", name, str(INSIDE / "lib" / name.removesuffix(".1"))]
    for path in plan.driver.extra:
        if _extra_place(path) != path:
            words += ["bind", str(path), str(_extra_place(path))]
    return words


def _entries(path: str) -> list[list[str]]:
    try:
        return [line.split(":") for line in Path(path).read_text(errors="surrogateescape").splitlines()]
    except FileNotFoundError:
        return []


def _etc(plan: SessionPlan, uid: int, gid: int) -> list[str]:
    folder = plan.session_dir / "etc"
    folder.mkdir(mode=0o755, exist_ok=True)
    host_users = _entries("/etc/passwd")
    users = [f"{plan.user_name}:x:{uid}:{gid}:{plan.user_name}:{plan.home}:/bin/bash"]
    users += [":".join(e) for e in host_users if len(e) == 7 and e[2] != str(uid) and e[0] != plan.user_name]
    host_groups = _entries("/etc/group")
    own = next((e[0] for e in host_groups if len(e) == 4 and e[2] == str(gid)), plan.user_name)
    groups = [f"{own}:x:{gid}:"]
    groups += [":".join(e) for e in host_groups if len(e) == 4 and e[2] != str(gid) and e[0] != own]
    words = []
    for name, content in (("passwd", users), ("group", groups)):
        _write(folder / name, "".join(f"{line}\n" for line in content).encode(errors="surrogateescape"), 0o644)
        words += ["bindro", str(folder / name), f"/etc/{name}"]
    libraries = {name: str(INSIDE / "lib" / name) for _, _, name in plan.driver.behind()}
    cache = ldcache.for_session(libraries) if libraries else None
    if cache is not None:
        _write(folder / "ld.so.cache", cache, 0o644)
        words += ["bindro?", str(folder / "ld.so.cache"), "/etc/ld.so.cache"]
    return words
