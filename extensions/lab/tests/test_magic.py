"""%gpu, in this process and in a kernel of its own."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import lab_nvml
import pytest
from gpuspawner_lab import magic, on_shrink, shrink
from gpuspawner_lab.nvml import NVMLReader
from gpuspawner_lab.report import Status
from jupyter_client.manager import start_new_kernel
from lab_service import TOKEN, Service

GIB = 2**30


@pytest.fixture
def session(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv("GPUSPAWNER_SERVICE_URL", service.url)  # type: ignore[attr-defined]
    monkeypatch.setenv("GPUSPAWNER_SESSION", "s1")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", TOKEN)
    monkeypatch.setattr(magic, "_reader", NVMLReader(lab_nvml.FakeNVML(lab_nvml.card())))
    return service


def line(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, which must be exactly one line of readable length."""
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert len(out) < 250
    return out.strip()


def test_status_in_a_terminal(session: Service) -> None:
    text = str(magic.run(""))
    assert text.splitlines()[0] == "GPU 1/4 of NVIDIA H100 80GB HBM3 (simulated)"
    assert "3.0 of 20.0 GiB used, 17.0 GiB free" in text
    assert "12 % · 71 W · 34 °C" in text
    assert "1.00 EUR per hour" in text
    assert "%gpu resize 1/8  %gpu resize 1/2" in text
    assert "resize 1\n" not in text  # others hold a quarter, so the whole card is not offered


def test_status_in_a_notebook_escapes_what_it_shows() -> None:
    status = Status({"share": "1/4", "cards": [{"name": "<b>card</b>"}], "simulated": True})
    html = status._repr_html_()
    assert "&lt;b&gt;card&lt;/b&gt; (simulated)" in html
    assert "<b>" not in html
    assert "– of – GiB" in html  # unknown, not 0


def test_status_without_a_service_or_driver_says_what_is_missing(
    session: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.broken = 503
    monkeypatch.setattr(magic, "_reader", NVMLReader(lab_nvml.FakeNVML()))
    text = str(magic.run("status"))
    assert "cannot be reached" in text
    assert "shows no card" in text


def test_resize_says_what_changed(session: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert magic.run("resize 1/2") is None
    assert line(capsys) == "GPU 1/4 → 1/2: memory 20.0 → 40.0 GiB in 3.2 ms, 1.60 EUR per hour"
    magic.run("resize 1/2")
    assert line(capsys) == "The share is 1/2 already: 40.0 GiB, 1.60 EUR per hour"


def test_refusals_are_one_line(session: Service, capsys: pytest.CaptureFixture[str]) -> None:
    session.used = 15 * GIB
    magic.run("resize 1/8")
    assert line(capsys) == "%gpu: Free 5.0 GiB first. Nothing was changed."
    magic.run("resize 1")
    assert line(capsys) == "%gpu: Others hold 2/8 of this card."
    assert session.share == "1/4"


@pytest.mark.parametrize(
    "share", ["", "1/3", "-1/8", "True", "1e999", "9/8", "nan", "0", "1/2 1/4", "[1]", "1" * 10_000_000, "１/2"]
)
def test_bad_shares_are_one_line_and_never_asked(
    session: Service, capsys: pytest.CaptureFixture[str], share: str
) -> None:
    magic.run(f"resize {share}")
    assert "give 1/8, 1/4, 1/2 or 1." in line(capsys)
    assert session.requests == []


@pytest.mark.parametrize("text", ["resiz 1/2", "help me", "status now", "x" * 10_000_000])
def test_unknown_words_are_one_line(session: Service, capsys: pytest.CaptureFixture[str], text: str) -> None:
    magic.run(text)
    if not text.startswith("help"):
        assert "is not known here" in line(capsys)
    assert session.requests == []


@pytest.mark.parametrize("broken", [401, 404, 500, 502])
def test_broken_services_are_one_line(session: Service, capsys: pytest.CaptureFixture[str], broken: int) -> None:
    session.broken = broken
    magic.run("resize 1/2")
    assert line(capsys).startswith("%gpu: The GPU service ")


def test_without_a_session(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUSPAWNER_SESSION", raising=False)
    for words in ("", "resize 1/2"):
        magic.run(words)
        assert "without a GPU share" in line(capsys)


def test_caches_are_freed_before_a_shrink_and_only_then(
    session: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session.used = 15 * GIB
    emptied = []
    torch = SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, empty_cache=lambda: emptied.append("torch")
        )
    )
    monkeypatch.setitem(sys.modules, "torch", torch)

    @on_shrink
    def free_mine() -> None:
        session.used = 2 * GIB

    @on_shrink
    def breaks() -> None:
        raise RuntimeError("no")

    try:
        magic.run("resize 1/2")
        assert session.used == 15 * GIB
        capsys.readouterr()
        magic.run("resize 1/8")
    finally:
        shrink.forget(free_mine)
        shrink.forget(breaks)
    assert session.share == "1/8"
    assert emptied == ["torch"]
    assert "breaks could not free its cache: RuntimeError: no" in capsys.readouterr().out


def test_on_shrink_wants_a_function() -> None:
    with pytest.raises(TypeError, match="function without arguments"):
        on_shrink(3)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("%gpu ", ["help", "resize", "status"]),
        ("%gpu re", ["resize"]),
        ("%gpu resize ", ["1/8", "1/4", "1/2", "1"]),
        ("%gpu resize 1/", ["1/8", "1/4", "1/2"]),
        ("%gpu help ", []),
    ],
)
def test_completion(text: str, choices: list[str]) -> None:
    assert magic.complete(text) == choices


def test_a_kernel_knows_the_magic_and_completes_it(session: Service) -> None:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        seen: list[dict] = []
        reply = client.execute_interactive("%gpu resize 1/2", output_hook=seen.append, timeout=60)
        assert reply["content"]["status"] == "ok"
        streams = "".join(m["content"]["text"] for m in seen if m["msg_type"] == "stream")
        assert streams.startswith("GPU 1/4 → 1/2: memory 20.0 → 40.0 GiB")
        seen.clear()
        client.execute_interactive("%gpu", output_hook=seen.append, timeout=60)
        (result,) = [m["content"]["data"] for m in seen if m["msg_type"] == "execute_result"]
        assert "GPU 1/2 of NVIDIA H100" in result["text/plain"]
        assert "<table" in result["text/html"]
        # Nothing is left in the person's namespace, and nothing heavy was loaded for the start.
        answer = client.execute_interactive("x = dir()", user_expressions={"x": "[n for n in x if 'gpu' in n]"})
        assert answer["content"]["user_expressions"]["x"]["data"]["text/plain"] == "[]"
        completion = client.complete("%gpu resize 1/", reply=True, timeout=60)["content"]
        assert {"1/8", "1/4", "1/2"} <= set(completion["matches"])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
