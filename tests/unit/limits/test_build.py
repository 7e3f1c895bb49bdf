"""The compiled parts: what they need, what they export, how the host flavour names its driver."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from support.limits import fake_driver

from gpuspawner.node.limits import build, ldcache


def _needed(path: Path) -> list[str]:
    text = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    return [line.split("[")[1].split("]")[0] for line in text.splitlines() if "(NEEDED)" in line]


def _exports(path: Path) -> set[str]:
    text = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in text.splitlines()}


@pytest.mark.parametrize(
    ("library", "driver", "prefix"),
    [
        (build.SHIM_CUDA, "/run/gpuspawner/driver/libcuda.so.1", "cu"),
        (build.SHIM_NVML, "/run/gpuspawner/driver/libnvidia-ml.so.1", "nvml"),
    ],
)
def test_the_shim_needs_libc_and_the_driver_and_exports_only_the_drivers_names(
    library: Path, driver: str, prefix: str
) -> None:
    build.require(library)
    libc = {"libc.so.6", "libdl.so.2", "libpthread.so.0"}
    assert set(_needed(library)) - libc == {driver}
    names = _exports(library)
    assert names
    assert all(name.startswith(prefix) for name in names)


@pytest.mark.parametrize(
    "file", [build.SHIM_CUDA, build.SHIM_NVML, build.HOST_CUDA, build.HOST_NVML, build.LAUNCHER], ids=lambda f: f.name
)
def test_it_runs_with_glibc_2_31(file: Path) -> None:
    """No symbol is asked for that glibc got later, and what was in libdl then is looked for there."""
    header = subprocess.run(["readelf", "-lW", file], capture_output=True, text=True, check=True).stdout
    if file == build.LAUNCHER and "INTERP" not in header:
        return  # linked statically
    if file == build.LAUNCHER:
        pytest.skip(
            "this machine has no static glibc to link the launcher with, so it needs the glibc it was built with"
        )
    text = subprocess.run(["objdump", "-T", file], capture_output=True, text=True, check=True).stdout
    wanted = re.findall(r"\*UND\*.*GLIBC_(\d+)\.(\d+)\S*\s+(\S+)", text)
    assert {"dlopen", "statx"} <= {name for _, _, name in wanted}
    assert [entry for entry in wanted if (int(entry[0]), int(entry[1])) > (2, 31)] == []
    assert "libdl.so.2" in _needed(file)


def test_no_code_of_ours_runs_when_the_shim_is_loaded() -> None:
    text = subprocess.run(["readelf", "-SW", build.SHIM_CUDA], capture_output=True, text=True, check=True).stdout
    sizes = {
        parts[0]: int(parts[4], 16)
        for line in text.splitlines()
        if "] ." in line and len(parts := line.split("]")[1].split()) > 4
    }
    assert sizes[".init_array"] == 8  # the compiler's own frame_dummy


def test_the_host_flavour_names_the_true_driver(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path)
    out = build.host_flavour(driver, tmp_path / "lib")
    assert str(driver.cuda) in _needed(out / "libcuda.so.1")
    assert str(driver.nvml) in _needed(out / "libnvidia-ml.so.1")
    assert (out / "libcuda.so").resolve() == out / "libcuda.so.1"
    build.host_flavour(driver, tmp_path / "lib")  # again, over the old one


def test_a_driver_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    folder = tmp_path
    while len(str(folder)) <= build.PLACEHOLDER_LENGTH:
        folder = folder / ("d" * 200)
    folder.mkdir(parents=True)
    driver = fake_driver(tmp_path)
    long = build.DriverFiles(Path(shutil.copy(driver.cuda, folder)), driver.nvml)
    with pytest.raises(ValueError, match="allowed are 1023"):
        build.host_flavour(long, tmp_path / "lib")


def test_what_is_not_built_is_named() -> None:
    with pytest.raises(build.NotBuiltError, match=r"nothing\.so missing .*run make -C"):
        build.require(build.BIN / "nothing.so")


def test_the_loaders_cache_leads_to_the_shim(tmp_path: Path) -> None:
    """glibc's own ldconfig reads what we wrote, in our order, with nothing lost but processor variants."""
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    libraries = {"libcuda.so.1": "/run/x/libcuda.so.1", "libnvidia-ml.so.1": "/run/x/libnvidia-ml.so.1"}
    content = ldcache.for_session(libraries)
    if ldconfig is None or content is None:
        pytest.skip("no ldconfig, or no ld.so.cache that we can read, on this machine")
    (tmp_path / "cache").write_bytes(content)

    def listed(*options: str) -> list[str]:
        text = subprocess.run([ldconfig, "-p", *options], capture_output=True, text=True, check=True).stdout
        return [line.strip() for line in text.splitlines() if "=>" in line]

    theirs = [line for line in listed() if line.split()[0] not in libraries and "hwcap" not in line]
    ours = listed("-C", str(tmp_path / "cache"))
    for name, path in libraries.items():
        assert [line.split("=> ")[1] for line in ours if line.split()[0] == name] == [path]
    rest = [line for line in ours if line.split()[0] not in libraries]
    assert [line.split()[0] for line in rest] == [line.split()[0] for line in theirs]


def test_a_cache_of_another_format_is_left_alone() -> None:
    assert ldcache.rewrite(b"ld.so-1.7.0\0" + struct.pack("=I", 0), {"libcuda.so.1": "/x"}) is None
    assert ldcache.rewrite(b"", {"libcuda.so.1": "/x"}) is None
