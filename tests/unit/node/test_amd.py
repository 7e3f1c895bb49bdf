"""AMD cards, against the stand-in for the module `amdsmi` in `tests/support/amd.py`. No AMD card was at hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.amd import ADDRESSES, UUIDS, StandIn

from gpuspawner.node.drivers.amd import AMDDriver
from gpuspawner.node.drivers.base import DriverError
from gpuspawner.node.drivers.machine import Drivers, of_machine
from gpuspawner.node.drivers.nvml import NVMLDriver
from gpuspawner.node.health import assess

UUID = UUIDS[0]


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    fake = StandIn()
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    return fake


def test_inventory(smi: StandIn) -> None:
    driver = AMDDriver()
    (card,) = driver.cards()
    assert card.uuid == f"GPU-{UUID}"
    assert card.model == "mi300x-192gb"
    assert card.memory_bytes == 196592 << 20
    assert not card.simulated
    assert driver.used_bytes(card.uuid) == {41: 3 << 30, 42: None}
    driver.close()
    assert smi.opened == 0


def test_telemetry_and_health(smi: StandIn) -> None:
    driver = AMDDriver()
    uuid = driver.cards()[0].uuid
    read = driver.readings(uuid)
    assert (read.temperature, read.slowdown_at, read.shutdown_at) == (62, 100, 105)
    assert (read.power_mw, read.power_limit_mw, read.utilization_percent) == (143_000, 750_000, 87)
    assert (read.ecc_corrected, read.ecc_uncorrected) == (3, 0)
    assert assess(read).state == "ok"
    smi.temperatures[1, 0] = 101
    assert assess(driver.readings(uuid)).state == "warning"


def test_what_the_card_does_not_tell_is_none(smi: StandIn) -> None:
    driver = AMDDriver()
    uuid = driver.cards()[0].uuid
    smi.temperatures.clear()
    smi.power = {"current_socket_power": "N/A", "power_limit": 750_000_000}
    smi.ecc = {}
    read = driver.readings(uuid)
    assert (read.temperature, read.power_mw, read.ecc_uncorrected) == (None, None, None)
    assert read.power_limit_mw == 750_000
    assert assess(read).state == "ok"


def test_without_library_driver_or_card_there_is_a_reason(smi: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.init_error = smi.AmdSmiException("Driver not loaded")
    with pytest.raises(DriverError, match="Driver not loaded"):
        AMDDriver().cards()
    assert assess(AMDDriver().readings("GPU-none")).state == "unknown"
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(DriverError, match="amdsmi is not installed"):
        AMDDriver().cards()


def lay_out(folder: Path, *addresses: str) -> AMDDriver:
    """A driver on a machine with the device files of cards at those addresses: card0 and renderD128, and so on."""
    dev, sysfs = folder / "dev", folder / "sys"
    (dev / "dri").mkdir(parents=True)
    (dev / "kfd").touch()
    for number, address in enumerate(addresses):
        for name in (f"card{number}", f"renderD{128 + number}"):
            (dev / "dri" / name).touch()
            (sysfs / "bus/pci/devices" / address / "drm" / name).mkdir(parents=True)
    return AMDDriver(dev=dev, sysfs=sysfs)


def test_a_session_reaches_its_cards_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", StandIn(2))
    driver = lay_out(tmp_path, *ADDRESSES)
    first, second = (card.uuid for card in driver.cards())

    def names(paths: tuple[Path, ...]) -> list[str]:
        return [path.name for path in paths]

    one = driver.access([second])
    assert one.env == {"ROCR_VISIBLE_DEVICES": "GPU-80f50d4f5e1a2b3d", "HIP_VISIBLE_DEVICES": "0"}
    assert names(one.own) == ["card1", "renderD129", "kfd"]
    assert names(one.hidden) == ["card0", "renderD128"]
    both = driver.access([second, first])
    assert both.env["ROCR_VISIBLE_DEVICES"] == "GPU-80f50d4f5e1a2b3c,GPU-80f50d4f5e1a2b3d"
    assert both.env["HIP_VISIBLE_DEVICES"] == "0,1"
    assert both.hidden == ()
    none = driver.access(["GPU-of-another-driver"])
    assert none.env == {"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
    assert (none.cards, none.own) == (frozenset(), ())
    assert len(none.hidden) == 5


def test_a_newer_library_says_the_name_itself(smi: StandIn) -> None:
    smi.amdsmi_get_gpu_enumeration_info = lambda handle: {"hip_uuid": "GPU-4b2c1a9f"}  # type: ignore[attr-defined]
    driver = AMDDriver()
    uuid = driver.cards()[0].uuid
    assert driver.access([uuid]).env["ROCR_VISIBLE_DEVICES"] == "GPU-4b2c1a9f"


def test_both_vendors_on_one_machine(smi: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia = NVMLDriver()
    monkeypatch.setattr(nvidia, "cards", list)  # none: what NVIDIA's cards do is shown elsewhere
    driver = Drivers([nvidia, AMDDriver()])
    (card,) = driver.cards()
    assert "whole" in (driver.only_whole(card.uuid) or "")
    assert driver.used_bytes(card.uuid)[41] == 3 << 30
    assert driver.access([card.uuid]).cards == {card.uuid}
    assert driver.idle(card.uuid) is False
    with pytest.raises(DriverError, match="how much it computes"):
        driver.samples(card.uuid)
    with pytest.raises(DriverError, match="no NVML"):
        driver.with_card(card.uuid, lambda handle: handle)
    assert assess(driver.readings("GPU-none", ())).state == "unknown"
    assert not driver.missing()
    smi.init_error = smi.AmdSmiException("Driver not loaded")
    broken = Drivers([nvidia, AMDDriver()])
    with pytest.raises(DriverError, match="Driver not loaded"):
        broken.cards()
    assert broken.missing()
    smi.init_error = None
    assert len(broken.cards()) == 1, "it is asked again"


def test_which_drivers_there_are_follows_the_setting(smi: StandIn) -> None:
    assert isinstance(of_machine({"GPUSPAWNER_CARDS": "amd"}), AMDDriver)
    assert isinstance(of_machine({"GPUSPAWNER_CARDS": "nvidia"}), NVMLDriver)
    assert isinstance(of_machine({"GPUSPAWNER_CARDS": "simulated"}), NVMLDriver)
