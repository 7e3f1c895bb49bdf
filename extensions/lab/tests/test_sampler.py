"""Readings of the driver, and the telemetry made of them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import lab_nvml
import pytest
from gpuspawner_lab.app import GPUSpawnerLab
from gpuspawner_lab.nvml import RETRY_SECONDS, NVMLReader, NVMLUnavailable
from gpuspawner_lab.sampler import SCHEMA, SCHEMA_ID, SessionView, TelemetrySampler
from gpuspawner_lab.service import ServiceClient
from jupyter_events import EventLogger
from lab_service import TOKEN, Service
from traitlets import TraitError

GIB = 2**30


class Log:
    def debug(self, *_: Any) -> None:
        raise AssertionError(_)


def make(service: Service, nvml: lab_nvml.FakeNVML, interval: float = 0.02) -> tuple[TelemetrySampler, list]:
    emitted: list[dict[str, Any]] = []
    view = SessionView(ServiceClient(service.url, TOKEN, "s1", timeout=5))  # type: ignore[attr-defined]
    return TelemetrySampler(NVMLReader(nvml), view, emitted.append, Log(), interval), emitted


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is awaited has no event of its own
            await asyncio.sleep(0.01)


@pytest.mark.case("hub-16")
def test_unknown_is_none_and_never_zero() -> None:
    unknown = lab_nvml.NVMLError_NotSupported()
    nvml = lab_nvml.FakeNVML(
        lab_nvml.card(load=unknown, milliwatts=unknown, celsius=unknown, memory=unknown, name=b"A card")
    )
    (reading,) = NVMLReader(nvml).read()
    assert reading.name == "A card"
    assert reading.utilization_percent is None
    assert reading.power_watts is None
    assert reading.temperature_celsius is None
    assert reading.memory_used_bytes is None
    assert reading.memory_allowed_bytes is None
    assert reading.processes is None


def test_processes_and_energy_that_the_driver_does_not_know_are_none() -> None:
    unknown = lab_nvml.NVMLError_NotSupported()
    (reading,) = NVMLReader(lab_nvml.FakeNVML(lab_nvml.card(processes=unknown, millijoules=unknown))).read(None, True)
    assert (reading.processes, reading.energy_joules) == (None, None)
    (reading,) = NVMLReader(lab_nvml.FakeNVML(lab_nvml.card(processes=[(7, None), (8, 0)]))).read(None, True)
    assert reading.processes == ((7, None), (8, 0))


async def test_without_a_card_no_card_is_shown(service: Service) -> None:
    service.without_card = True
    sampler, _ = make(service, lab_nvml.FakeNVML(lab_nvml.card()))
    for _turn in range(2):  # the first sample is taken before the service was asked
        sample = await sampler.sample()
        assert (sample["available"], sample["share"], sample["cards"]) == (False, "none", [])
        assert "runs without a card" in sample["reason"]
        assert (sample["memory_used_bytes"], sample["memory_allowed_bytes"]) == (None, None)
    await sampler.stop()


def test_zero_is_zero() -> None:
    (reading,) = NVMLReader(lab_nvml.FakeNVML(lab_nvml.card(load=0, celsius=0, memory=(0, GIB)))).read()
    assert (reading.utilization_percent, reading.temperature_celsius, reading.memory_used_bytes) == (0, 0, 0)


@pytest.mark.case("hub-18")
def test_only_the_sessions_cards_are_read() -> None:
    nvml = lab_nvml.FakeNVML(lab_nvml.card(), lab_nvml.card(uuid="GPU-other"))
    assert [card.uuid for card in NVMLReader(nvml).read(["GPU-other"])] == ["GPU-other"]
    assert len(NVMLReader(nvml).read()) == 2
    with pytest.raises(NVMLUnavailable, match="does not show this session's card"):
        NVMLReader(nvml).read(["GPU-mine"])


@pytest.mark.case("hub-17")
def test_a_session_with_a_slice_sees_that_and_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = lab_nvml.FakeNVML()
    nvml.slices = [lab_nvml.card(uuid="MIG-1", processes=[(5, GIB)], load=lab_nvml.NVMLError_NotSupported())]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    # the service names the card that the slice is cut from
    (reading,) = NVMLReader(nvml).read(["GPU-whole"], True)
    assert (reading.uuid, reading.processes, reading.utilization_percent) == ("MIG-1", ((5, GIB),), None)


async def test_before_the_service_has_answered_only_the_environments_cards_are_shown(service: Service) -> None:
    nvml = lab_nvml.FakeNVML(lab_nvml.card(uuid="GPU-other", celsius=99), lab_nvml.card(uuid="GPU-own", celsius=30))
    service.broken = 502
    view = SessionView(ServiceClient(service.url, TOKEN, "s1", timeout=5))  # type: ignore[attr-defined]
    sampler = TelemetrySampler(NVMLReader(nvml), view, [].append, Log(), 1.0, own_cards=("GPU-own",))
    sample = await sampler.sample()
    await sampler.stop()
    assert [card["uuid"] for card in sample["cards"]] == ["GPU-own"]
    assert sample["temperature_celsius"] == 30


async def test_energy_counts_from_the_first_reading_and_survives_a_new_driver(service: Service) -> None:
    nvml = lab_nvml.FakeNVML(lab_nvml.card(millijoules=5_000_000))
    sampler, _ = make(service, nvml)
    first = await sampler.sample()
    assert (first["energy_joules"], first["energy_since"]) == (0, first["at"])
    nvml.cards[0]["millijoules"] = 5_000_000 + 90_500
    assert (await sampler.sample())["energy_joules"] == 90.5
    nvml.cards[0]["millijoules"] = 0
    again = await sampler.sample()
    assert (again["energy_joules"], again["energy_since"]) == (0, again["at"])
    nvml.cards[0]["millijoules"] = lab_nvml.NVMLError_NotSupported()
    assert (await sampler.sample())["energy_joules"] is None
    await sampler.stop()


class Detail:
    """Notes what it was told."""

    revision = 7

    def __init__(self) -> None:
        self.told: list[Any] = []

    async def update(self, pids: Any, session: Any) -> None:
        self.told.append((list(pids), session and session["id"]))


async def test_processes_are_looked_for_only_while_a_panel_looks(service: Service) -> None:
    nvml = lab_nvml.FakeNVML(lab_nvml.card(processes=[(11, GIB), (12, 2 * GIB)]))
    view = SessionView(ServiceClient(service.url, TOKEN, "s1", timeout=5))  # type: ignore[attr-defined]
    detail = Detail()
    sampler = TelemetrySampler(NVMLReader(nvml), view, [].append, Log(), 60.0, detail)
    sampler.watch(30, "status bar")
    assert "processes" not in await sampler.sample()
    assert detail.told == []
    sampler.watch(30, "panel", detail=True)
    sample = await sampler.sample()
    assert sample["processes"] == [{"pid": 12, "memory_bytes": 2 * GIB}, {"pid": 11, "memory_bytes": GIB}]
    assert sample["revision"] == 7
    assert detail.told[-1] == ([12, 11], "s1")
    sampler.watch(0, "panel")
    assert "processes" not in await sampler.sample()
    sampler.watch(0, "status bar")
    await until(lambda: not sampler.running)
    await sampler.stop()


def test_a_missing_driver_is_tried_again_but_not_at_once() -> None:
    now = 0.0
    nvml = lab_nvml.FakeNVML(lab_nvml.card())
    nvml.init_error = lab_nvml.NVMLError("Driver Not Loaded")
    reader = NVMLReader(nvml, clock=lambda: now)
    for _ in range(3):
        with pytest.raises(NVMLUnavailable, match="Driver Not Loaded"):
            reader.read()
    assert nvml.inits == 1
    nvml.init_error = None
    now += RETRY_SECONDS
    assert len(reader.read()) == 1


def test_a_restarted_driver_is_opened_anew() -> None:
    nvml = lab_nvml.FakeNVML(lab_nvml.card())
    reader = NVMLReader(nvml)
    reader.read()
    nvml.count_error = lab_nvml.NVMLError("GPU is lost")
    with pytest.raises(NVMLUnavailable, match="GPU is lost"):
        reader.read()
    nvml.count_error = None
    assert len(reader.read()) == 1
    assert nvml.inits == 2


async def test_samples_fit_their_schema(service: Service) -> None:
    unknown = lab_nvml.NVMLError_NotSupported()
    for nvml in (
        lab_nvml.FakeNVML(lab_nvml.card()),
        lab_nvml.FakeNVML(
            lab_nvml.card(load=unknown, milliwatts=unknown, celsius=unknown, memory=unknown, millijoules=unknown)
        ),
        lab_nvml.FakeNVML(),
    ):
        sampler, _ = make(service, nvml)
        logger = EventLogger()
        logger.register_event_schema(SCHEMA)
        logger.add_listener(schema_id=SCHEMA_ID, listener=_ignore)
        sampler._detail = Detail()  # type: ignore[assignment]
        sampler.watch(60, detail=True)
        assert logger.emit(schema_id=SCHEMA_ID, data=await sampler.sample()) is not None
        await sampler.stop()


async def _ignore(**_: Any) -> None: ...


@pytest.mark.case("hub-15")
async def test_no_card_says_why_and_takes_memory_from_the_service(service: Service) -> None:
    sampler, _ = make(service, lab_nvml.FakeNVML())
    sample = await sampler.sample()
    await sampler.stop()
    assert sample["available"] is False
    assert sample["reason"] == "The driver shows no card to this session."
    assert (sample["memory_used_bytes"], sample["memory_allowed_bytes"]) == (3 * GIB, 20 * GIB)
    assert sample["utilization_percent"] is None
    assert sample["power_watts"] is None


async def test_several_cards_are_summed_and_an_unknown_part_makes_the_sum_unknown(service: Service) -> None:
    nvml = lab_nvml.FakeNVML(
        lab_nvml.card(uuid="a", load=10, celsius=30),
        lab_nvml.card(uuid="b", load=20, celsius=50, milliwatts=lab_nvml.NVMLError_NotSupported()),
    )
    sampler, _ = make(service, nvml)
    sample = await sampler.sample()
    await sampler.stop()
    assert sample["memory_used_bytes"] == 6 * GIB
    assert sample["utilization_percent"] == 15
    assert sample["temperature_celsius"] == 50
    assert sample["power_watts"] is None


async def test_a_changed_limit_asks_for_the_share_at_once(service: Service) -> None:
    nvml = lab_nvml.FakeNVML(lab_nvml.card())
    sampler, _ = make(service, nvml)
    await sampler.sample()
    asked = len(service.requests)
    assert (await sampler.sample())["share"] == "1/4"
    assert len(service.requests) == asked  # the answer is used again
    service.share = "1/2"
    nvml.cards[0]["memory"] = (3 * GIB, 40 * GIB)
    assert (await sampler.sample())["share"] == "1/2"
    await sampler.stop()


async def test_who_comes_while_samples_are_taken_gets_the_last_one(service: Service) -> None:
    nvml = lab_nvml.FakeNVML(lab_nvml.card())
    sampler, emitted = make(service, nvml, interval=60.0)
    sampler._detail = Detail()  # type: ignore[assignment]
    assert not sampler.watch(30, "status bar")
    await until(lambda: emitted)
    asked = len(service.requests)
    assert sampler.watch(30, "another")
    nvml.cards[0]["memory"] = (GIB, 20 * GIB)
    last = await sampler.recent()
    assert (last["at"], last["memory_used_bytes"]) == (emitted[0]["at"], 3 * GIB)
    assert len(service.requests) == asked
    sampler.watch(30, "panel", detail=True)
    assert (await sampler.recent())["revision"] == 7  # the last one has no details: it is taken anew
    nvml.cards[0]["memory"] = (2 * GIB, 20 * GIB)
    sampler.nudge()
    assert (await sampler.recent())["memory_used_bytes"] == 2 * GIB
    await sampler.stop()


async def test_an_event_tells_sums_and_the_status_each_card(service: Service) -> None:
    sampler, emitted = make(service, lab_nvml.FakeNVML(lab_nvml.card(uuid="a"), lab_nvml.card(uuid="b")), interval=60.0)
    sampler.watch(30, "tab")
    await until(lambda: emitted)
    assert "cards" not in emitted[0]
    assert emitted[0]["memory_used_bytes"] == 6 * GIB
    assert [card["uuid"] for card in (await sampler.recent())["cards"]] == ["a", "b"]
    await sampler.stop()


async def test_a_missing_service_is_said_and_readings_go_on(service: Service) -> None:
    service.broken = 502
    sampler, _ = make(service, lab_nvml.FakeNVML(lab_nvml.card()))
    sample = await sampler.sample()
    await sampler.stop()
    assert sample["share"] is None
    assert "cannot be reached" in sample["service_reason"]
    assert sample["memory_used_bytes"] == 3 * GIB


async def test_sampling_ends_when_nobody_looks(service: Service) -> None:
    sampler, emitted = make(service, lab_nvml.FakeNVML(lab_nvml.card()))
    async with asyncio.timeout(20):
        while len(emitted) < 3:
            sampler.watch(0.2, "tab")  # renewed as long as somebody looks
            await asyncio.sleep(0.01)
    await until(lambda: not sampler.running)
    count = len(emitted)
    sampler.watch(10)
    await until(lambda: len(emitted) > count)
    await sampler.stop()
    assert not sampler.running


@pytest.mark.case("hub-20")
async def test_a_hanging_driver_does_not_hold_the_event_loop(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuspawner_lab.sampler.DRIVER_PATIENCE", 0.05)
    nvml = lab_nvml.FakeNVML(lab_nvml.card())
    let_go = threading.Event()
    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", lambda: let_go.wait(20) and 1)
    sampler, _ = make(service, nvml)
    sample = await sampler.sample()
    assert "has not answered" in sample["reason"]
    assert sample["share"] == "1/4"
    let_go.set()
    async with asyncio.timeout(20):
        while not (await sampler.sample())["available"]:
            pass
    await sampler.stop()


async def test_samples_at_the_same_time_share_a_reading(service: Service) -> None:
    sampler, _ = make(service, lab_nvml.FakeNVML(lab_nvml.card()))
    samples = await asyncio.gather(*(sampler.sample() for _ in range(20)))
    await sampler.stop()
    assert {sample["memory_used_bytes"] for sample in samples} == {3 * GIB}


@pytest.mark.parametrize("value", [0, -1, 0.1, 61, float("nan"), float("inf")])
def test_settings_are_checked(value: float) -> None:
    with pytest.raises(TraitError, match="sample_seconds"):
        GPUSpawnerLab(sample_seconds=value)
