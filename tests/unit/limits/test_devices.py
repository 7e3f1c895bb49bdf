"""Virtual functions and device files, found in trees laid out as Linux and the driver lay them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuspawner.errors import InvalidInput
from gpuspawner.node.limits import devices, sriov
from gpuspawner.node.limits.enforcer import AUTO, wanted


def pci(sysfs: Path, address: str, vendor: str = "0x10de", kind: str = "0x030200") -> Path:
    real = sysfs / "devices" / "pci0000:00" / address
    real.mkdir(parents=True)
    (real / "vendor").write_text(f"{vendor}\n")
    (real / "class").write_text(f"{kind}\n")
    listed = sysfs / "bus" / "pci" / "devices"
    listed.mkdir(parents=True, exist_ok=True)
    (listed / address).symlink_to(real)
    return real


def with_functions(sysfs: Path, address: str, functions: list[str], **facts: str) -> None:
    physical = pci(sysfs, address, **facts)
    (physical / "sriov_totalvfs").write_text("16\n")
    (physical / "sriov_numvfs").write_text(f"{len(functions)}\n")
    for number, function in enumerate(functions):
        virtual = pci(sysfs, function, **facts)
        (virtual / "physfn").symlink_to(physical)
        (physical / f"virtfn{number}").symlink_to(virtual)


def test_virtual_functions_of_cards_are_found(tmp_path: Path) -> None:
    with_functions(tmp_path, "0000:3b:00.0", ["0000:3b:00.4", "0000:3b:00.5"])
    with_functions(tmp_path, "0000:18:00.0", ["0000:18:02.0"], vendor="0x1002", kind="0x038000")
    with_functions(tmp_path, "0000:5e:00.0", ["0000:5e:00.2"], vendor="0x8086", kind="0x020000")  # a network card
    with_functions(tmp_path, "0000:86:00.0", [])
    driver = tmp_path / "bus" / "pci" / "drivers" / "nvidia"
    driver.mkdir(parents=True)
    (tmp_path / "bus" / "pci" / "devices" / "0000:3b:00.4" / "driver").symlink_to(driver)
    found = sriov.virtual_functions(tmp_path)
    assert [(each.address, each.parent, each.vendor, each.number) for each in found] == [
        ("0000:18:02.0", "0000:18:00.0", "amd", 0),
        ("0000:3b:00.4", "0000:3b:00.0", "nvidia", 0),
        ("0000:3b:00.5", "0000:3b:00.0", "nvidia", 1),
    ]
    assert [each.driver for each in found] == [None, "nvidia", None]
    assert sriov.is_virtual("00000000:3B:00.4", tmp_path)
    assert not sriov.is_virtual("00000000:3B:00.0", tmp_path)
    assert not sriov.is_virtual("00000000:99:00.0", tmp_path)
    assert sriov.virtual_functions(tmp_path / "nothing") == []


def test_device_files_of_others_are_hidden(tmp_path: Path) -> None:
    dev, caps = tmp_path / "dev", tmp_path / "caps"
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (dev / name).touch()
    for number in (1, 2, 30, 31, 39, 40):
        (dev / "nvidia-caps" / f"nvidia-cap{number}").touch()
    for instance, access, compute in ((1, 30, 31), (2, 39, 40)):
        folder = caps / "gpu1" / "mig" / f"gi{instance}"
        (folder / "ci0").mkdir(parents=True)
        (folder / "access").write_text(f"DeviceFileMinor: {access}\nDeviceFileMode: 292\n")
        (folder / "ci0" / "access").write_text(f"DeviceFileMinor: {compute}\nDeviceFileMode: 292\n")
    assert devices.can_hide(1, dev)
    assert not devices.can_hide(2, dev)
    hidden = {path.name for path in devices.to_hide([devices.Own(1, 2)], dev, caps)}
    assert hidden == {"nvidia0", "nvidia-cap1", "nvidia-cap2", "nvidia-cap30", "nvidia-cap31"}
    whole = {path.name for path in devices.to_hide([devices.Own(0), devices.Own(1)], dev, caps)}
    assert whole == {f"nvidia-cap{number}" for number in (1, 2, 30, 31, 39, 40)}


def test_the_setting_names_enforcers_best_first() -> None:
    assert wanted({}) == wanted({"GPUSPAWNER_ENFORCERS": " auto "}) == AUTO
    assert wanted({"GPUSPAWNER_ENFORCERS": "shim, mig"}) == ("shim", "mig")
    for given in ("kernel", "mig,,shim", "mig,auto", "mig,mig"):
        with pytest.raises(InvalidInput, match="GPUSPAWNER_ENFORCERS"):
            wanted({"GPUSPAWNER_ENFORCERS": given})
