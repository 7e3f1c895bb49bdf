"""Joules by share and by container, with the method beside each figure; readings and /sys are played, sums are real."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from gpuspawner_runtime import grid
from gpuspawner_runtime.cards import AMD, Reading
from gpuspawner_runtime.energy import Meter
from gpuspawner_runtime.limit_file import Share
from gpuspawner_runtime.processor import Processor

SECOND = 10**9


class Played:
    """Readings in turn; the last one stays."""

    name = "played"

    def __init__(self, *readings: Sequence[Reading]) -> None:
        self._next: Iterator[Sequence[Reading]] = iter(readings)
        self._last: Sequence[Reading] = ()

    def read(self) -> Sequence[Reading]:
        self._last = next(self._next, self._last)
        return self._last


def card(joules: float | None = None, watts: float | None = None, load: float | None = None) -> list[Reading]:
    return [Reading("GPU-a", joules, watts, load)]


def measured(source: Played | None, samples: int, eighths: Sequence[int] = (), seconds: float = 1.0) -> Meter:
    """A meter that has sampled so many times, so many seconds apart, with these eighths at each sample."""
    times = iter(range(samples + 50))
    held = iter(eighths)
    last: list[Share] = []

    def shares() -> list[Share] | None:
        number = next(held, None)
        if number is not None:
            last[:] = [Share("GPU-a", number, number << 30)]
        return last or None

    meter = Meter(source, Processor(Path("/nowhere")), shares, lambda: int(next(times) * seconds * SECOND))
    for _ in range(samples):
        meter.sample()
    meter._ended.set()  # what is read is what was sampled
    return meter


def test_the_cards_counter_is_charged_by_share() -> None:
    meter = measured(Played(card(1000.0), card(1100.0), card(1300.0)), 3, eighths=(2,))
    energy = meter.read()
    assert energy.card_joules == pytest.approx(300 * 2 / 8)
    assert energy.card_method == "measured: the card's counter (played, 25.0% of the card, by share)"
    assert not energy.estimated


def test_a_share_that_changes_is_charged_as_it_was_held() -> None:
    meter = measured(Played(card(0.0), card(100.0), card(200.0)), 3, eighths=(2, 2, 8))
    energy = meter.read()
    assert energy.card_joules == pytest.approx(100 * 2 / 8 + 100)
    assert "changed" in str(energy.card_method)


@pytest.mark.case("runtime-14")
def test_without_a_counter_power_is_integrated_and_called_estimated() -> None:
    meter = measured(Played(card(watts=100.0), card(watts=300.0), card(watts=300.0)), 3, eighths=(4,), seconds=2.0)
    energy = meter.read()
    assert energy.card_joules == pytest.approx((200 * 2 + 300 * 2) / 2)
    assert energy.estimated
    assert str(energy.card_method).startswith("estimated: power read every 1 s")


@pytest.mark.case("runtime-14")
@pytest.mark.parametrize("source", [None, Played(), Played(card(load=0.5), card(load=0.5))])
def test_what_nobody_tells_is_unknown_and_never_nothing(source: Played | None) -> None:
    energy = measured(source, 3).read()
    assert energy.card_joules is None
    assert energy.card_method is None
    assert energy.processor_joules is None
    assert energy.joules is None


def test_a_counter_that_begins_anew_does_not_count_backwards() -> None:
    readings = [card(900.0, 50.0), card(1000.0, 50.0), card(10.0, 50.0), card(60.0, 50.0)]
    energy = measured(Played(*readings), 4).read()
    assert energy.card_joules == pytest.approx(100 + 50 + 50)  # the stretch between from power
    assert energy.estimated


def test_a_gap_in_power_is_not_bridged_and_is_said() -> None:
    energy = measured(Played(card(watts=100.0), card(watts=100.0), card(watts=100.0)), 3, seconds=60.0).read()
    assert energy.card_joules is None
    meter = measured(Played(card(watts=100.0), card(watts=100.0)), 2)
    meter._clock = lambda: 100 * SECOND
    meter.sample()
    energy = meter.read()
    assert energy.card_joules == pytest.approx(100)
    assert "with gaps" in str(energy.card_method)


def test_a_card_that_is_not_ours_is_not_charged() -> None:
    strange = [Reading("GPU-b", 100.0, None, None)]
    energy = measured(Played(strange, [Reading("GPU-b", 900.0, None, None)]), 2, eighths=(8,)).read()
    assert energy.card_joules is None


def test_one_of_two_cards_unknown_makes_the_sum_unknown() -> None:
    two = [[Reading("GPU-a", joules, None, None), Reading("GPU-b", None, None, 0.5)] for joules in (0.0, 10.0)]
    assert measured(Played(*two), 2).read().card_joules is None


def test_load_is_the_mean_of_the_readings() -> None:
    assert measured(Played(card(0.0, load=0.0), card(1.0, load=1.0)), 2).read().load == 0.5


@pytest.mark.case("runtime-16")
def test_card_hours_are_exact() -> None:
    # 2 eighths for an hour, then 6: sampled at odd moments, the sum is exact.
    meter = measured(None, 2, eighths=(2, 6), seconds=3600)
    assert meter.read().card_hours == Fraction(1, 4)
    four = [measured(None, 8, eighths=(2,), seconds=Fraction(3600, 7)).read().card_hours for _ in range(4)]  # type: ignore[arg-type]
    assert sum(hours for hours in four if hours) == 1


def test_a_meter_begins_ends_and_leaves_no_thread() -> None:
    meter = Meter(Played(card(5.0), card(9.0)), Processor(Path("/nowhere")), lambda: None)
    assert meter.start() is meter.start()
    thread = meter._thread
    assert thread is not None
    meter.stop()
    assert not thread.is_alive()
    assert meter.read().card_joules == 4.0
    assert meter.read().card_joules == 4.0


# -- the processor ------------------------------------------------------------------------------------------------


class Machine:
    """A /proc and a /sys in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tick = 1_000_000 // os.sysconf("SC_CLK_TCK")
        for number, name in enumerate(("package-0", "dram", "core", "psys")):
            self.write(f"sys/class/powercap/intel-rapl:{number}/name", name)
            self.write(f"sys/class/powercap/intel-rapl:{number}/max_energy_range_uj", "1000000000")
        self.write("proc/self/cgroup", "0::/kube/pod\n")
        self.write("proc/self/mountinfo", "")
        self.write("sys/fs/cgroup/kube/pod/cgroup.type", "domain")
        self.at(0, 0, 0)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text + "\n")

    def at(self, package_uj: int, own_us: int, machine_us: int) -> None:
        """Counters now; memory has used a tenth of the package, cores and the whole board count for nothing."""
        for number, value in enumerate((package_uj, package_uj // 10, package_uj // 2, package_uj * 3)):
            self.write(f"sys/class/powercap/intel-rapl:{number}/energy_uj", str(value))
        self.write("sys/fs/cgroup/kube/pod/cpu.stat", f"usage_usec {own_us}\nuser_usec {own_us}")
        # user, nice, system, idle, iowait, irq, softirq, steal: idle time is nobody's
        ticks = machine_us // self.tick
        self.write("proc/stat", f"cpu  {ticks - 2} 1 1 999999 99999 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.case("runtime-15")
def test_a_container_is_charged_its_own_part_of_the_machine(machine: Machine) -> None:
    machine.at(500_000_000, 1_000_000, 10_000_000)
    processor = Processor(machine.root)
    processor.start()
    machine.at(600_000_000, 3_000_000, 18_000_000)
    joules, method = processor.read()
    assert joules == pytest.approx((100 + 10) * 2 / 8)
    assert method == "measured: RAPL, by the container's part of the CPU time used on the machine"


def test_a_counter_that_wraps_goes_on(machine: Machine) -> None:
    machine.at(990_000_000, 0, 10_000_000)
    processor = Processor(machine.root)
    processor.start()
    machine.write("sys/class/powercap/intel-rapl:0/energy_uj", str(10_000_000))
    machine.write("sys/fs/cgroup/kube/pod/cpu.stat", "usage_usec 1000000")
    machine.write("proc/stat", f"cpu  {11_000_000 // machine.tick} 0 0 0 0 0 0 0")
    assert processor.read()[0] == pytest.approx(20)


@pytest.mark.case("runtime-15")
def test_an_older_kernels_container_too_and_elsewhere_the_process_itself(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:cpu,cpuacct:/docker/one\n0::/")
    machine.write("sys/fs/cgroup/cpuacct/docker/one/cpuacct.usage", "0")
    machine.at(0, 0, 1_000_000)
    processor = Processor(machine.root)
    processor.start()
    machine.at(10_000_000, 0, 5_000_000)
    machine.write("sys/fs/cgroup/cpuacct/docker/one/cpuacct.usage", "1000000000")
    assert processor.read()[0] == pytest.approx(11 / 4)
    machine.write("proc/self/cgroup", "0::/")  # the machine's root: everybody's time
    own = Processor(machine.root)
    own.start()
    assert "this process" in str(own.read()[1])


@pytest.mark.case("runtime-14")
@pytest.mark.parametrize("lack", ["no counter", "counter not readable", "only own times shown", "no times"])
def test_a_processor_that_cannot_be_told_is_unknown(machine: Machine, lack: str) -> None:
    if lack == "no counter":
        (machine.root / "sys/class/powercap/intel-rapl:0/name").write_text("other")
        (machine.root / "sys/class/powercap/intel-rapl:1/name").write_text("other")
    elif lack == "counter not readable":
        for number in (0, 1):
            (machine.root / f"sys/class/powercap/intel-rapl:{number}/energy_uj").write_text("")
    elif lack == "no times":
        (machine.root / "proc/stat").unlink()
    else:
        machine.write("proc/self/mountinfo", "71 50 0:40 /proc/stat /proc/stat rw - fuse.lxcfs lxcfs rw")
    processor = Processor(machine.root)
    processor.start()
    assert processor.read() == (None, None)


def test_sensors_of_an_amd_card(tmp_path: Path) -> None:
    device = tmp_path / "card0" / "device"
    (device / "hwmon" / "hwmon3").mkdir(parents=True)
    (device / "vendor").write_text("0x1002\n")
    (device / "hwmon" / "hwmon3" / "power1_average").write_text("150000000\n")
    (device / "gpu_busy_percent").write_text("40\n")
    assert AMD(tmp_path).read() == [Reading("card0", None, 150.0, 0.4)]
    (device / "vendor").write_text("0x8086\n")
    with pytest.raises(OSError, match="no card of AMD"):
        AMD(tmp_path)


def test_the_grid_is_known_by_country_or_given_and_never_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(grid.VARIABLE, raising=False)
    assert grid.intensity() is None
    assert grid.intensity("XX") is None
    assert grid.intensity("-3") is None
    assert grid.intensity("nan") is None
    found = grid.intensity("fr")
    assert found is not None
    assert (found.grams_per_kwh, "2023" in found.label, "Ember" in found.label) == (56, True, True)
    monkeypatch.setenv(grid.VARIABLE, "120.5")
    given = grid.intensity()
    assert given is not None
    assert (given.grams_per_kwh, given.label) == (120.5, "120.5 gCO2/kWh, as given")
