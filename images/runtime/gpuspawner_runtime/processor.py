"""Joules of the processor that are this container's own: RAPL by part of the CPU time used."""

from __future__ import annotations

import os
from pathlib import Path


class Processor:
    """Measures from `start`; `read` gives joules and method, or None and None. `root`: where /proc and /sys are."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._counters: dict[Path, tuple[int, int]] = {}
        self._joules = 0.0
        self._last: tuple[dict[Path, int], int, int] | None = None
        self._scope = ""
        self._ended = self._broken = False

    def start(self) -> None:
        """Begin; where counters or times cannot be read, the figure stays unknown."""
        for domain in sorted((self._root / "sys/class/powercap").glob("intel-rapl:*")):
            # Packages, and memory where it has a domain of its own; cores and graphics are inside the package.
            if _text(domain / "name").startswith(("package", "dram")):
                wrap = _number(domain / "max_energy_range_uj")
                if _number(domain / "energy_uj") is not None and wrap:
                    self._counters[domain / "energy_uj"] = (0, wrap)
        self._last = self._look()

    def stop(self) -> None:
        """End; the figure stays as it is."""
        self._add()
        self._ended = True

    def read(self) -> tuple[float | None, str | None]:
        """Joules so far, and how they were found."""
        if not self._ended:
            self._add()
        if self._last is None or self._broken:
            return None, None
        return self._joules, f"measured: RAPL, by {self._scope}'s part of the CPU time used on the machine"

    def _add(self) -> None:
        before = self._last
        if before is None or self._broken:
            return
        now = self._look()
        if now is None:
            self._broken = True
            return
        used = 0
        for counter, value in now[0].items():
            step = value - before[0].get(counter, value)
            used += step if step >= 0 else step + self._counters[counter][1]
        mine, all_of_it = now[1] - before[1], now[2] - before[2]
        if all_of_it > 0:
            self._joules += used / 1e6 * min(1.0, max(0.0, mine / all_of_it))
            self._last = now  # with no time on the clock of the machine yet, the stretch goes on

    def _look(self) -> tuple[dict[Path, int], int, int] | None:
        """Counters in microjoules; own and the machine's CPU time, both in microseconds."""
        values = {counter: _number(counter) for counter in self._counters}
        known = {counter: value for counter, value in values.items() if value is not None}
        machine, own = self._machine_time(), self._own_time()
        if not values or len(known) < len(values) or machine is None or own is None:
            return None
        return known, own, machine

    def _machine_time(self) -> int | None:
        mounts = _text(self._root / "proc/self/mountinfo")
        if any(" /proc/stat " in line and "lxcfs" in line for line in mounts.splitlines()):
            return None  # there the file shows the container's own times, and the part would always be 1
        words = _text(self._root / "proc/stat").partition("\n")[0].split()
        if len(words) < 8 or words[0] != "cpu":
            return None
        user, nice, system, _idle, _iowait, irq, softirq = map(int, words[1:8])
        steal = int(words[8]) if len(words) > 8 else 0
        return (user + nice + system + irq + softirq + steal) * 1_000_000 // os.sysconf("SC_CLK_TCK")

    def _own_time(self) -> int | None:
        for line in _text(self._root / "proc/self/cgroup").splitlines():
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if number == "0" and not controllers:
                place = self._root / "sys/fs/cgroup" / path.lstrip("/")
                # The root of the machine has no such file: it holds everybody's time, not ours.
                if (place / "cgroup.type").exists() or (place / "cgroup.events").exists():
                    for row in _text(place / "cpu.stat").splitlines():
                        if row.startswith("usage_usec "):
                            self._scope = "the container"
                            return int(row.split()[1])
            elif "cpuacct" in controllers.split(",") and path != "/":
                used = _number(self._root / "sys/fs/cgroup/cpuacct" / path.lstrip("/") / "cpuacct.usage")
                if used is not None:
                    self._scope = "the container"
                    return used // 1000
        times = os.times()
        self._scope = "this process"
        return int((times.user + times.system + times.children_user + times.children_system) * 1e6)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None
