"""%gpu, in this process and in a kernel of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import lab_nvml
import pytest
from gpuspawner_lab import history, magic, on_shrink, processes, shrink
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


@pytest.mark.parametrize(
    ("share", "title"),
    [("1/4", "GPU 1/4 of H100"), ("1", "Whole GPU: H100"), ("2", "2 GPUs: H100"), (None, "GPU – of H100")],
)
def test_a_whole_card_is_not_called_by_a_number(share: str | None, title: str) -> None:
    assert Status({"share": share, "cards": [{"name": "H100"}]}).title() == title


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


@pytest.mark.parametrize("text", ["resiz 1/2", "x" * 10_000_000, "x " * 5_000_000])
def test_unknown_words_are_one_line(session: Service, capsys: pytest.CaptureFixture[str], text: str) -> None:
    magic.run(text)
    said = line(capsys)
    assert "is not known here" in said
    assert "give nothing, status, resize SHARE, processes, history or help." in said
    assert session.requests == []


@pytest.mark.parametrize("text", ["help me", "status now", "history 3", "processes" + " x" * 1000])
def test_words_behind_a_command_are_one_line(session: Service, capsys: pytest.CaptureFixture[str], text: str) -> None:
    magic.run(text)
    assert f"{text.split()[0]} takes nothing after it" in line(capsys)
    assert session.requests == []


@pytest.mark.parametrize("broken", [401, 404, 500, 502])
def test_broken_services_are_one_line(session: Service, capsys: pytest.CaptureFixture[str], broken: int) -> None:
    session.broken = broken
    magic.run("resize 1/2")
    assert line(capsys).startswith("%gpu: The GPU service ")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.1 403 Forbidden\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"x" * 100_000 + b"\r\n\r\n{}",
        b"",
    ],
    ids=[
        "another protocol",
        "cut",
        "no session",
        "a refusal that is cut",
        "deep",
        "a deep refusal",
        "a long header",
        "nothing",
    ],
)
def test_another_program_on_the_services_port_is_one_line(
    session: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("GPUSPAWNER_SERVICE_URL", f"http://127.0.0.1:{listener.getsockname()[1]}/api/v1")

        def serve() -> None:
            with contextlib.suppress(OSError):  # the end of the test
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):  # where it is not read to the end
                        connection.recv(65536)
                        connection.sendall(answer)

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        magic.run("resize 1/2")
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
    assert line(capsys).startswith("%gpu: ")


@pytest.mark.parametrize("address", ["no address\n", "http://[::1", "http://127.0.0.1:99999", "gopher://127.0.0.1"])
def test_an_address_that_is_none_is_one_line(
    session: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("GPUSPAWNER_SERVICE_URL", address)
    magic.run("resize 1/2")
    assert line(capsys).startswith("%gpu: The GPU service ")


def test_a_session_without_a_card_says_so(session: Service, capsys: pytest.CaptureFixture[str]) -> None:
    session.without_card = True  # and the driver shows one, which is somebody else's
    for text in (str(magic.run("")), str(magic.run("status")._repr_html_())):
        assert "No card" in text
        assert "runs without a card" in text
        assert not any(word in text for word in ("H100", "GiB", "%gpu resize", "GPU none"))
    for words in ("resize 1/2", "processes"):
        magic.run(words)
        assert "runs without a card" in line(capsys)
    assert [method for method, *_ in session.requests if method != "GET"] == []


def test_without_a_session(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUSPAWNER_SESSION", raising=False)
    for words in ("", "status", "resize 1/2", "processes", "history"):
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


def test_processes_with_their_notebook(session: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    me = os.getpid()
    stranger = 2**22 + 1  # above the largest pid of Linux, so that it never exists
    fake = lab_nvml.FakeNVML(lab_nvml.card(processes=[(me, 1 * GIB), (stranger, None)]))
    monkeypatch.setattr(magic, "_reader", NVMLReader(fake))
    title, head, own, other = str(magic.run("processes")).splitlines()
    assert title == "Processes that hold card memory"
    assert head.split() == ["pid", "GiB", "kernel", "notebook", "command"]
    assert own.split()[:3] == [str(me), "1.0", "–"]
    assert "(this kernel)" in own
    assert own.endswith(processes.owner_of(me).command)
    assert other.split() == [str(stranger), "–", "–", "–", "process", str(stranger)]  # unknown, never 0
    fake.cards[0]["processes"] = []
    assert str(magic.run("processes")) == "No process of this session holds card memory."


def test_processes_that_the_driver_does_not_tell(session: Service, capsys: pytest.CaptureFixture[str]) -> None:
    unsupported = lab_nvml.card(processes=lab_nvml.NVMLError_NotSupported("no"))
    magic._reader = NVMLReader(lab_nvml.FakeNVML(unsupported))
    magic.run("processes")
    assert line(capsys) == "%gpu: The driver does not say which processes hold memory."


def test_a_process_below_a_kernel_is_the_notebooks_and_its_secrets_stay_out(tmp_path: Path) -> None:
    def process(pid: int, parent: int, words: list[str], environ: str = "") -> None:
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes("\0".join([*words, ""]).encode())
        (folder / "stat").write_text(f"{pid} (a) b) R {parent} 1 1")
        (folder / "environ").write_text(environ)

    process(
        10,
        1,
        ["/usr/bin/python", "-m", "ipykernel", "-f", "/x/kernel-abc-12.json"],
        "A=1\0JPY_SESSION_NAME=/w/a\x1b.ipynb\0",
    )
    process(20, 10, ["/usr/bin/python", "/work/train.py", "--token=secret"])
    process(30, 1, ["/usr/bin/python", "--token=secret", "train.py"])
    assert processes.owner_of(20, tmp_path) == processes.Owner("python train.py", "abc-12", "a\ufffd.ipynb")
    assert processes.owner_of(10, tmp_path) == processes.Owner("python", "abc-12", "a\ufffd.ipynb")
    assert processes.owner_of(30, tmp_path) == processes.Owner("python")
    assert processes.owner_of(40, tmp_path) == processes.Owner("process 40")


def test_history_adds_up_to_the_cost(session: Service) -> None:
    session.events = []
    for kind, at, actor, share in (
        ("start", "2026-01-01T00:00:00.000+00:00", "hub", "1/4"),
        ("resize", "2026-01-01T02:00:00.000+00:00", "ada", "1"),
        ("resize", "2026-01-01T02:30:00.000+00:00", "<b>root</b>", "1/8"),
    ):
        session.share = share
        session.events.insert(0, session.event(kind, at, actor))
    made = history.history(session.events, datetime(2026, 1, 1, 12, 30, tzinfo=UTC))
    lines = [entry.split() for entry in str(made).splitlines()]
    assert lines[2] == ["2026-01-01", "00:00:00", "start", "1/4", "1.00", "EUR", "2.00", "hub"]
    assert lines[3] == ["2026-01-01", "02:00:00", "resize", "1/4", "→", "1", "2.50", "EUR", "1.25", "ada"]
    assert lines[4][3:] == ["1", "→", "1/8", "0.63", "EUR", "6.30", "<b>root</b>"]
    assert str(made).splitlines()[-1] == "  Cost so far: 9.55 EUR."
    assert "&lt;b&gt;root&lt;/b&gt;" in made._repr_html_()
    assert "<b>" not in made._repr_html_()


def test_history_with_a_row_that_cannot_be_read_has_no_sum() -> None:
    rows = [{"at": "x", "kind": None, "eighths": True, "price_per_hour": "NaN"}]
    assert "Cost so far: unknown" in str(history.history(rows))
    assert str(history.history([])) == "This session has no history yet."


def test_history_asks_the_service(session: Service) -> None:
    magic.run("resize 1/2")
    text = str(magic.run("history"))
    assert "1/4 → 1/2" in text
    assert session.requests[-1] == ("GET", "/api/v1/events?session=s1&limit=1000", None)


def test_on_shrink_wants_a_function() -> None:
    with pytest.raises(TypeError, match="function without arguments"):
        on_shrink(3)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("%gpu ", ["help", "history", "processes", "resize", "status"]),
        ("%gpu re", ["resize"]),
        ("%gpu resize ", ["1/8", "1/4", "1/2", "1"]),
        ("%gpu resize 1/", ["1/8", "1/4", "1/2"]),
        ("gpu  resize  1/", ["1/8", "1/4", "1/2"]),
        ("%gpu help ", []),
        ("%gpu resize 1/8 ", []),
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
        assert completion["matches"] == ["1/8", "1/4", "1/2"]
        assert client.complete("%gpu h", reply=True, timeout=60)["content"]["matches"] == ["help", "history"]
        assert "upper" in client.complete("gpu = ''; gpu.up", reply=True, timeout=60)["content"]["matches"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("command", ["", "processes", "history", "resize 1/2"])
def test_a_terminal_shows_plain_text_without_colours(session: Service, command: str, tmp_path: Path) -> None:
    """IPython as in a terminal, into a pipe."""
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "-c", f"%gpu {command}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
    )
    expected = {"": "GPU 1/4 of", "processes": "%gpu: ", "history": "Cost so far: ", "resize 1/2": "GPU 1/4 → 1/2"}
    assert expected[command] in done.stdout
    assert "\x1b" not in done.stdout
    assert "<table" not in done.stdout
