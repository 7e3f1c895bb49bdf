"""A small model behind a session's own notebook server: an extension of Jupyter Server that answers at `…/model`.

In `~/.jupyter/jupyter_server_config.json`:

    {"ServerApp": {"jpserver_extensions": {"gpuspawner_examples.serving": true}},
     "ServedModel": {"address": "s3://bucket/model.pt"}}

Parameters are read through `gpuspawner_runtime.cached`, so only the first start on a machine fetches them. Whoever may
use the server may ask the model: with the hub's token, through the hub's proxy. `python -m gpuspawner_examples.serving`
makes a model and times its start with an empty and with a filled cache.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from gpuspawner_runtime import cached
from jupyter_server.base.handlers import APIHandler
from torch import nn
from tornado import web

#: Numbers that go in and come out for each sample.
INPUTS, OUTPUTS = 64, 10
_WIDTH = 2048


def build() -> nn.Module:
    """The model without its parameters: three layers, 4.3 million numbers, 17 MB."""
    layers = [nn.Linear(INPUTS, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, OUTPUTS)]
    return nn.Sequential(*layers)


def make(path: Path, seed: int = 0) -> None:
    """Write parameters by chance to `path`: a model to try this with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.save(build().state_dict(), path)


class Served:
    """A model that is loaded when it is first asked, once, whoever asks first."""

    def __init__(self, address: str, folder: Path | None = None) -> None:
        """`address`: where the parameters lie, any address of fsspec; `folder`: of the cache."""
        self.address, self._folder = address, folder
        self._model: nn.Module | None = None
        self._once = threading.Lock()
        #: Seconds that loading took; None before.
        self.seconds: float | None = None

    def answer(self, samples: list[list[float]]) -> list[list[float]]:
        """What the model makes of samples of `INPUTS` numbers: `OUTPUTS` numbers for each.

        Raises ValueError where a sample has another number of numbers; errors of the store and the cache as they are.
        """
        if not samples or any(len(sample) != INPUTS for sample in samples):
            raise ValueError(f"inputs must be one or more lists of {INPUTS} numbers each.")
        with self._once:
            if self._model is None:
                self._model = self._load()
        device = next(self._model.parameters()).device
        with torch.inference_mode():
            found: list[list[float]] = self._model(torch.tensor(samples, device=device)).cpu().tolist()
        return found

    def _load(self) -> nn.Module:
        began = time.perf_counter()
        path = cached(self.address, folder=self._folder).path()
        with torch.device("meta"):
            model = build()
        model.load_state_dict(torch.load(path, mmap=True, weights_only=True), assign=True)
        model.eval().requires_grad_(False)
        if torch.cuda.is_available():
            try:
                model = model.to("cuda")
            except RuntimeError:  # a simulated card, which does not compute
                model = model.to("cpu")
        self.seconds = time.perf_counter() - began
        return model


class ModelHandler(APIHandler):
    """`GET` says what is served, `POST {"inputs": [[…], …]}` computes, in a thread beside the server's own work."""

    @web.authenticated
    async def get(self) -> None:
        served: Served = self.settings["gpuspawner_model"]
        self.finish({"model": served.address, "inputs": INPUTS, "outputs": OUTPUTS, "load_seconds": served.seconds})

    @web.authenticated
    async def post(self) -> None:
        served: Served = self.settings["gpuspawner_model"]
        given: Any = self.get_json_body()
        try:
            samples = [[float(number) for number in sample] for sample in given["inputs"]]
            outputs = await asyncio.to_thread(served.answer, samples)
        except (KeyError, TypeError, ValueError) as error:
            raise web.HTTPError(400, f"The body must be {{'inputs': [[{INPUTS} numbers], …]}}: {error}") from None
        self.finish({"outputs": outputs})


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "gpuspawner_examples.serving"}]


def _load_jupyter_server_extension(app: Any) -> None:
    """Called by Jupyter Server. Where `ServedModel.address` names no model nothing is served, and the log says so."""
    address = app.config.get("ServedModel", {}).get("address")
    if not isinstance(address, str) or not address:
        app.log.warning("gpuspawner_examples.serving serves nothing: ServedModel.address names no model")
        return
    app.web_app.settings["gpuspawner_model"] = Served(address)
    base = app.web_app.settings["base_url"].rstrip("/")
    app.web_app.add_handlers(".*$", [(f"{base}/model", ModelHandler)])


_TIMED = """
import json, sys
from pathlib import Path
from gpuspawner_examples.serving import INPUTS, Served
served = Served(sys.argv[1], Path(sys.argv[2]))
served.answer([[0.5] * INPUTS])
print(json.dumps(served.seconds))
"""


def times(address: str, folder: Path) -> tuple[float, float]:
    """Seconds until a model is loaded in a new process: with an empty cache, and with what that one left."""

    def once() -> float:
        command = [sys.executable, "-c", _TIMED, address, str(folder)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return float(json.loads(done.stdout))

    return once(), once()


def main() -> None:
    """Time both starts of the model at the address that is given, or of one that is made."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if len(sys.argv) > 1:
            address = sys.argv[1]
        else:
            make(place / "model.pt")
            address = f"file://{place / 'model.pt'}"
        cold, warm = times(address, place / "cache")
    print(f"cold {cold:.3f} s, warm {warm:.3f} s: loaded from {address.split(':')[0]}, Python and PyTorch not counted")


if __name__ == "__main__":
    main()
