"""How a session's first process is started: its user, its namespaces, its environment."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import gpuspawner
from gpuspawner.card import Card
from gpuspawner.errors import Unavailable
from gpuspawner.node.accounts import Accounts
from gpuspawner.node.drivers.base import Driver, DriverError
from gpuspawner.node.in_force import InForce
from gpuspawner.node.limits import launch
from gpuspawner.node.limits.choice import Enforcers
from gpuspawner.node.records import Record
from gpuspawner.simulation.control import control_socket


@dataclass(frozen=True)
class Started:
    """How to start a session's first process: `argv_prefix` goes before its command. `record`: what is in force."""

    record: Record
    argv_prefix: list[str]
    env: dict[str, str]
    grade: launch.Grade
    home: Path
    uid: int | None


class Starter:
    """Says how to start sessions of the installation whose state folder is `state`."""

    def __init__(
        self,
        state: Path,
        accounts: Accounts,
        driver: Driver,
        files: launch.DriverFiles,
        enforcers: Enforcers,
        in_force: InForce,
        folder_of: Callable[[str], Path],
    ) -> None:
        self._state = state
        self._accounts = accounts
        self._driver = driver
        self._files = files
        self._enforcers = enforcers
        self._in_force = in_force
        self._folder_of = folder_of

    def start(self, record: Record) -> Started:
        """For a session whose limits are in force. Raises Unavailable."""
        account = self._accounts.of(record.user)
        access = self._driver.access(record.cards)
        hidden = self._enforcers.hidden(record.session, record.cards)
        plan = launch.SessionPlan(
            session_dir=self._folder_of(record.session),
            home=account.home,
            uid=account.uid,
            gid=account.uid,
            user_name=account.name,
            driver=self._files,
            expose=_program_folders(),
            hide=[self._state, *self._files.hidden, *hidden, *access.hidden],
            cgroup=self._enforcers.cgroup(record.session, record.cards),
            groups=_groups(access.own),
        )
        try:
            prepared = launch.prepare(plan)
        except launch.LaunchError as error:
            raise Unavailable(f"The session cannot be started on this machine: {error}.", code="launch") from error
        env = {
            **prepared.env,
            **access.env,
            # empty hides all, where it has none
            "CUDA_VISIBLE_DEVICES": ",".join(self._in_force.visible(record, without=access.cards)),
            "GPUSPAWNER_SESSION": record.session,
        }
        return Started(record, prepared.argv_prefix, env, prepared.grade, account.home, account.uid)


def _groups(files: Iterable[Path]) -> tuple[int, ...]:
    """The groups that may use device files and not everybody may; never root's."""
    found = set()
    for file in files:
        status = file.stat()
        if status.st_gid and status.st_mode & 0o060 == 0o060 and status.st_mode & 0o006 != 0o006:
            found.add(status.st_gid)
    return tuple(sorted(found))


def driver_files(driver: Driver, cards: Iterable[Card]) -> launch.DriverFiles:
    """The libraries of the cards' driver, for sessions to see. Raises DriverError where they are not found, unless all
    cards do without."""
    needed = any(driver.only_whole(card.uuid) is None for card in cards)
    if driver.cuda_library is None or driver.nvml_library is None:
        if not needed:
            return launch.DriverFiles(cuda=None, nvml=None)
        raise DriverError("The card driver's libraries (libcuda.so.1, libnvidia-ml.so.1) were not found.")
    simulated_socket = os.environ.get("GPUSPAWNER_SIM_SOCKET")
    return launch.DriverFiles(
        cuda=driver.cuda_library,
        nvml=driver.nvml_library,
        extra=[Path(simulated_socket)] if simulated_socket else [],
        env={"GPUSPAWNER_SIM_SOCKET": simulated_socket} if simulated_socket else {},
        hidden=[control_socket(simulated_socket)] if simulated_socket else [],
    )


def _program_folders() -> list[Path]:
    """What a session must be able to read for its server and kernels to start."""
    folders = {Path(sys.prefix), Path(sys.base_prefix), Path(gpuspawner.__file__).parent}
    folders.update(Path(path) for path in sysconfig.get_paths().values() if Path(path).is_dir())
    return sorted(folder.resolve() for folder in folders)
