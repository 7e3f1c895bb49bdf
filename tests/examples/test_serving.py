"""A model behind a notebook server of its own: asked as a client would, and its starts timed."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

torch = pytest.importorskip("torch")

from gpuspawner_examples import serving  # noqa: E402

ROOT = Path(__file__).parents[2]
PATHS = [str(ROOT / "images/runtime"), str(ROOT / "images/examples")]
TOKEN = {"Authorization": "token known-to-both"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "model.pt"
    serving.make(path)
    return path


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        **os.environ,
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")]),
        "GPUSPAWNER_CACHE": str(home / "cache"),
    }
    options = {
        "port": str(port),
        "ServerApp.base_url": "/user/ann/",
        "IdentityProvider.token": "known-to-both",
        "ServerApp.root_dir": str(home),
    }
    config = {
        "ServerApp": {"jpserver_extensions": {"gpuspawner_examples.serving": True}},
        "ServedModel": {"address": f"file://{model}"},
    }
    (home / ".jupyter").mkdir()
    (home / ".jupyter/jupyter_server_config.json").write_text(json.dumps(config))
    command = [
        sys.executable,
        "-m",
        "jupyter_server",
        "--allow-root",
        *(f"--{name}={v}" for name, v in options.items()),
    ]
    with subprocess.Popen(command, env=env, cwd=home) as process:
        try:
            address = f"http://127.0.0.1:{port}/user/ann"
            ended = time.monotonic() + 120
            while not _answers(f"{address}/api"):
                assert process.poll() is None
                assert time.monotonic() < ended, "the server does not answer"
                time.sleep(0.1)
            yield address
        finally:
            process.terminate()


def _answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_model_answers_behind_the_server_as_it_does_by_itself(server: str, model: Path) -> None:
    said = httpx.get(f"{server}/model", headers=TOKEN).json()
    assert said == {"model": f"file://{model}", "inputs": 64, "outputs": 10, "load_seconds": None}
    samples = torch.rand(3, serving.INPUTS, generator=torch.Generator().manual_seed(1))
    answer = httpx.post(f"{server}/model", headers=TOKEN, json={"inputs": samples.tolist()}, timeout=60)
    assert answer.status_code == 200, answer.text
    itself = serving.build()
    itself.load_state_dict(torch.load(model, weights_only=True))
    with torch.inference_mode():
        torch.testing.assert_close(torch.tensor(answer.json()["outputs"]), itself(samples), rtol=1e-4, atol=1e-5)
    assert httpx.get(f"{server}/model", headers=TOKEN).json()["load_seconds"] > 0


def test_who_has_no_token_gets_nothing_and_wrong_inputs_are_named(server: str) -> None:
    assert httpx.get(f"{server}/model").status_code == 403
    assert httpx.post(f"{server}/model", json={"inputs": [[0.0] * 64]}).status_code == 403
    for body in ({"inputs": [[1.0, 2.0]]}, {"inputs": []}, {"in": []}, {"inputs": [["a"] * 64]}):
        answer = httpx.post(f"{server}/model", headers=TOKEN, json=body)
        assert answer.status_code == 400, answer.text
        assert "64 numbers" in answer.json()["message"]


def test_a_second_start_finds_the_parameters_in_the_cache(model: Path, tmp_path: Path) -> None:
    moved = tmp_path / "model.pt"
    moved.write_bytes(model.read_bytes())
    first = serving.Served(f"file://{moved}", tmp_path / "cache")
    expected = first.answer([[0.5] * 64])
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size > 15_000_000]
    assert len(kept) == 1, "the parameters are on the local disk"
    assert serving.Served(f"file://{moved}", tmp_path / "cache").answer([[0.5] * 64]) == expected


def test_the_command_prints_both_starts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(PATHS))
    monkeypatch.setattr(sys, "argv", ["serving"])
    serving.main()
    assert re.fullmatch(r"cold [\d.]+ s, warm [\d.]+ s: loaded from file, .*\n", capsys.readouterr().out)
