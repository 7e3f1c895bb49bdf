"""NVML on simulated cards, read with pynvml: readings, faults, events."""

from __future__ import annotations

import pytest

from gpuspawner.simulation import ControlError, SimulatedCards

H100 = 81559 << 20
CONTEXT = 64 << 20


@pytest.fixture
def nvml(program):
    """A program with pynvml started, `h` for card 0 and `fault` for the error that a call gives."""
    running = program()
    running(
        """
import pynvml as N
N.nvmlInit()
h = N.nvmlDeviceGetHandleByIndex(0)
def fault(name, *arguments):
    try:
        getattr(N, "nvml" + name)(*arguments)
    except N.NVMLError as error:
        return type(error).__name__
"""
    )
    return running


def test_memory_and_processes(nvml, program, cards):
    assert nvml("[N.nvmlDeviceGetMemoryInfo(h).total, N.nvmlDeviceGetMemoryInfo(h).used]") == [H100, 0]
    other, third = program(), program()
    other("context = start()\nalloc(GIB)")
    third("context = start()\nalloc(3 * GIB)")
    third("second = c_void_p()\ncu.CtxCreate_v2(byref(second), 0, 1)")
    assert nvml("N.nvmlDeviceGetMemoryInfo(h).used") == 2 * CONTEXT + (4 << 30)
    assert nvml("N.nvmlDeviceGetMemoryInfo(h, version=N.nvmlMemory_v2).used") == 2 * CONTEXT + (4 << 30)
    processes = "[[p.pid, p.usedGpuMemory] for p in N.nvmlDeviceGetComputeRunningProcesses{}({})]"
    expected = [[other.pid, CONTEXT + (1 << 30)], [third.pid, CONTEXT + (3 << 30)]]
    for version in ("", "_v2", "_v3"):
        assert sorted(nvml(processes.format(version, "h"))) == sorted(expected)
    assert nvml(processes.format("", "N.nvmlDeviceGetHandleByIndex(1)")) == [[third.pid, CONTEXT]]
    assert nvml("N.nvmlDeviceGetGraphicsRunningProcesses(h)") == []
    other.kill()
    cards.await_used(CONTEXT + (3 << 30))
    assert nvml(processes.format("", "h")) == expected[1:]


def test_handles(nvml):
    assert nvml("N.nvmlDeviceGetCount()") == 2
    one = "N.nvmlDeviceGetIndex(N.nvmlDeviceGetHandleBy{0}(N.nvmlDeviceGet{1}(N.nvmlDeviceGetHandleByIndex(1)){2}))"
    assert nvml(one.format("UUID", "UUID", "")) == 1
    assert nvml(one.format("Serial", "Serial", "")) == 1
    assert nvml(one.format("PciBusId", "PciInfo", ".busId")) == 1
    assert nvml("fault('DeviceGetHandleByUUID', 'GPU-none')") == "NVMLError_NotFound"
    assert nvml("fault('DeviceGetHandleByIndex', 2)") == "NVMLError_InvalidArgument"
    assert nvml("N.nvmlDeviceGetName(h)") == "NVIDIA H100 80GB HBM3 (simulated)"


def test_readings_follow_the_script(nvml, cards):
    with cards.connect() as control:
        control.set(0, "temperature", 91)
        control.set(0, "memory-temperature", 97)
        control.set(0, "power", 650_000)
        control.set(0, "utilization", 83)
        control.set(0, "sm-clock", 1200)
        control.set(0, "fan", 40)
        control.set(0, "ecc-corrected", 5)
        control.set(0, "ecc-uncorrected-lifetime", 7)
        control.set(0, "remapped-uncorrected", 2)
        control.set(0, "pcie-replays", 11)
        control.set(0, "pcie-tx", 12_345)
        control.set(0, "pcie-width", 8)
        control.set_link(0, 3, "up", 0)
        control.set_link(0, 2, "replays", 9)
        control.set_link(0, 17, "tx-kib", 1 << 40)
    read = nvml(
        """[
        N.nvmlDeviceGetTemperature(h, N.NVML_TEMPERATURE_GPU), N.nvmlDeviceGetTemperatureV(h, N.NVML_TEMPERATURE_GPU),
        N.nvmlDeviceGetPowerUsage(h), N.nvmlDeviceGetUtilizationRates(h).gpu,
        N.nvmlDeviceGetClockInfo(h, N.NVML_CLOCK_SM), N.nvmlDeviceGetFanSpeed(h), N.nvmlDeviceGetNumFans(h),
        N.nvmlDeviceGetTotalEccErrors(h, N.NVML_MEMORY_ERROR_TYPE_CORRECTED, N.NVML_VOLATILE_ECC),
        N.nvmlDeviceGetTotalEccErrors(h, N.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, N.NVML_AGGREGATE_ECC),
        N.nvmlDeviceGetRemappedRows(h)[1], N.nvmlDeviceGetPcieReplayCounter(h),
        N.nvmlDeviceGetPcieThroughput(h, N.NVML_PCIE_UTIL_TX_BYTES), N.nvmlDeviceGetCurrPcieLinkWidth(h),
        N.nvmlDeviceGetNvLinkState(h, 3), N.nvmlDeviceGetNvLinkState(h, 2),
        N.nvmlDeviceGetNvLinkErrorCounter(h, 2, N.NVML_NVLINK_ERROR_DL_REPLAY)]"""
    )
    assert read == [91, 91, 650_000, 83, 1200, 40, 1, 5, 7, 2, 11, 12_345, 8, 0, 1, 9]
    fields = nvml(
        """[[v.nvmlReturn, v.value.uiVal if v.valueType == 1 else v.value.ullVal] for v in
        N.nvmlDeviceGetFieldValues(h, [N.NVML_FI_DEV_MEMORY_TEMP, N.NVML_FI_DEV_POWER_INSTANT,
        N.NVML_FI_DEV_NVLINK_LINK_COUNT, N.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        (N.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 17), N.NVML_FI_DEV_RETIRED_SBE])]"""
    )
    assert fields == [[0, 97], [0, 650_000], [0, 18], [0, 9], [0, 1 << 40], [3, 0]]


def test_readings_go_back_to_the_load(nvml, cards):
    cards.control("set 0 power 500000")
    cards.control("set 0 temperature 80")
    cards.control("set 0 utilization 50")
    for name in ("power", "temperature", "utilization"):
        cards.control(f"set 0 {name} auto")
    assert nvml("[N.nvmlDeviceGetPowerUsage(h), N.nvmlDeviceGetUtilizationRates(h).gpu]") == [70_000, 0]
    cards.control("set 0 utilization 100")
    assert nvml("N.nvmlDeviceGetPowerUsage(h)") == 700_000


def test_energy_counts_the_power(nvml, cards):
    cards.control("set 0 power 2000000")  # two kilowatts, so that milliseconds show
    before = nvml("N.nvmlDeviceGetTotalEnergyConsumption(h)")
    values = nvml(
        """
import time
begin, values = time.monotonic(), []
first = N.nvmlDeviceGetTotalEnergyConsumption(h)
while time.monotonic() - begin < 0.2: values.append(N.nvmlDeviceGetTotalEnergyConsumption(h))
took = time.monotonic() - begin
"""
    ) or nvml("values")
    assert values == sorted(values)
    assert nvml("abs((values[-1] - first) / 2e6 - took)") < 0.02  # mJ over mW are seconds
    cards.control("set 0 power 0")
    stopped = nvml("N.nvmlDeviceGetTotalEnergyConsumption(h)")
    assert stopped >= values[-1] > before
    cards.control("set 0 utilization 100")  # writes the counter anew: it must neither jump nor run
    assert nvml("N.nvmlDeviceGetTotalEnergyConsumption(h)") == stopped


UNSUPPORTED = {
    "utilization": "DeviceGetUtilizationRates",
    "power": "DeviceGetPowerUsage",
    "energy": "DeviceGetTotalEnergyConsumption",
    "fan": "DeviceGetFanSpeed",
    "ecc": "DeviceGetEccMode",
    "pcie": "DeviceGetCurrPcieLinkWidth",
    "processes": "DeviceGetComputeRunningProcesses",
    "memory": "DeviceGetMemoryInfo",
}


@pytest.mark.case("hub-16")
@pytest.mark.parametrize("metric", UNSUPPORTED)
def test_unsupported_metrics(nvml, cards, metric):
    cards.control(f"unsupported 0 {metric}")
    assert nvml(f"fault({UNSUPPORTED[metric]!r}, h)") == "NVMLError_NotSupported"
    assert nvml(f"fault({UNSUPPORTED[metric]!r}, N.nvmlDeviceGetHandleByIndex(1))") == (
        "NVMLError_NotSupported" if metric == "fan" else None
    )
    cards.control(f"supported 0 {metric}")
    assert nvml(f"fault({UNSUPPORTED[metric]!r}, h)") is None


def test_more_unsupported_metrics(nvml, cards):
    for metric in ("temperature", "clocks", "nvlink", "xid"):
        cards.control(f"unsupported 0 {metric}")
    calls = (
        "'DeviceGetTemperature', h, 0",
        "'DeviceGetClockInfo', h, 1",
        "'DeviceGetNvLinkState', h, 0",
        "'DeviceRegisterEvents', h, N.nvmlEventTypeXidCriticalError, N.nvmlEventSetCreate()",
    )
    assert {nvml(f"fault({call})") for call in calls} == {"NVMLError_NotSupported"}
    assert nvml("N.nvmlDeviceGetFieldValues(h, [N.NVML_FI_DEV_MEMORY_TEMP])[0].nvmlReturn") == 3


def test_a_lost_card(nvml, one, cards):
    one("pointer = alloc(GIB)")
    cards.control("lose 0")
    assert nvml("fault('DeviceGetMemoryInfo', h)") == "NVMLError_GpuIsLost"
    assert nvml("fault('DeviceGetTemperature', h, 0)") == "NVMLError_GpuIsLost"
    assert nvml("fault('DeviceGetMemoryInfo', N.nvmlDeviceGetHandleByIndex(1))") is None
    assert nvml("N.nvmlDeviceGetUUID(h)").startswith("GPU-")
    unknown = 999
    assert one("code_of('MemAlloc_v2', byref(c_uint64()), 1)") == unknown
    cards.control("restore 0")
    assert nvml("N.nvmlDeviceGetMemoryInfo(h).used") == CONTEXT + (1 << 30)


def test_xid_events(nvml, cards):
    cards.control("xid 0 13")  # before the registration: not reported
    nvml(
        """
events = N.nvmlEventSetCreate()
N.nvmlDeviceRegisterEvents(h, N.nvmlEventTypeXidCriticalError, events)
def event(milliseconds=10000):
    data = N.nvmlEventSetWait_v2(events, milliseconds)
    return [N.nvmlDeviceGetIndex(data.device), data.eventType, data.eventData]
"""
    )
    assert nvml("fault('EventSetWait_v2', events, 0)") == "NVMLError_Timeout"
    nvml.tell("event()")  # waits already when it happens
    cards.control("xid 1 62")  # not registered for
    cards.control("xid 0 48")
    assert nvml.answer() == [0, 8, 48]
    cards.control("xid 0 63")
    cards.control("lose 0")
    assert [nvml("event()"), nvml("event()")] == [[0, 8, 63], [0, 8, 79]]
    assert nvml("fault('EventSetWait_v2', events, 1)") == "NVMLError_Timeout"
    nvml("N.nvmlEventSetFree(events)")


def test_without_a_daemon_the_driver_is_not_loaded(program):
    one = program(GPUSPAWNER_SIM_SOCKET="/nonexistent/socket")
    with pytest.raises(AssertionError, match="Driver Not Loaded"):
        one("import pynvml as N\nN.nvmlInit()")


def test_a_daemon_that_comes_back_is_found_again(program, tmp_path):
    socket = tmp_path / "cards.sock"
    first = SimulatedCards("1*a100-40gb", socket=socket).start()
    one = program(first)
    one("import pynvml as N\nN.nvmlInit()\nh = N.nvmlDeviceGetHandleByIndex(0)")
    assert one("N.nvmlDeviceGetMemoryInfo(h).total") == 40 << 30
    first.stop()
    with pytest.raises(AssertionError, match="Driver Not Loaded"):
        one("N.nvmlDeviceGetMemoryInfo(h)")
    with SimulatedCards("1*a100-80gb", socket=socket):
        assert one("N.nvmlDeviceGetMemoryInfo(h).total") == 80 << 30
        one.close()


def test_everything_before_the_start_is_refused(program):
    one = program()
    with pytest.raises(AssertionError, match="Uninitialized"):
        one("import pynvml as N\nN.nvmlInit()\nN.nvmlShutdown()\nN.nvmlDeviceGetCount()")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("set 0 temperature 9000", "temperature: got"),
        ("set 0 temperature -4", "temperature: got"),
        ("set 0 warmth 20", "name: got"),
        ("set 5 temperature 20", "card: got"),
        ("set x temperature 20", "card: got"),
        ("link 0 18 up 1", "link: got"),
        ("unsupported 0 joy", "metric: got"),
        ("xid 0 70000", "code: got"),
        ("dance", "command: got"),
        ("", "command: got"),
        ("set", "card: got"),
        ("slice-ns 0", "slice-ns: got"),
    ],
)
def test_bad_commands_are_told_what_is_allowed(cards, command, named):
    with pytest.raises(ControlError, match=named) as caught:
        cards.control(command)
    assert "allowed" in str(caught.value)
