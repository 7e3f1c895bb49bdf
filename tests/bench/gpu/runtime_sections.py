"""One section of runtime.sh: `runtime_sections.py NAME OUTPUT_FOLDER` prints one line of JSON."""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpuspawner_runtime import elastic, tracebacks
from gpuspawner_runtime.energy import Meter
from gpuspawner_runtime.fast import fast
from torch import nn
from torch.nn import functional as F

from tests.runtime.models import MODELS

OUT = Path(sys.argv[2])
Figures = dict[str, Any]


class Skip(Exception):
    """The machine lacks what a section needs."""


def seconds(call: Callable[[], Any], rounds: int = 20) -> float:
    """Median time of a call on the card, when warm."""
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def forward_and_backward(step: Callable[[Any], torch.Tensor], model: nn.Module, batch: Any) -> Callable[[], None]:
    def call() -> None:
        model.zero_grad(set_to_none=True)
        step(batch).backward()

    return call


def bert(words: int = 30522, width: int = 768, depth: int = 12) -> tuple[nn.Module, torch.Tensor]:
    """An encoder of BERT-base's size, and a batch of 32 rows of 128 words."""
    layer = nn.TransformerEncoderLayer(width, 12, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
    model = nn.Sequential(nn.Embedding(words, width), nn.TransformerEncoder(layer, depth), nn.Linear(width, words))
    return model.cuda(), torch.randint(words, (32, 128), device="cuda")


def masked(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    def step(tokens: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return step


def card() -> Figures:
    facts = {"card": torch.cuda.get_device_name(), "memory_bytes": torch.cuda.mem_get_info()[1]}
    facts |= {"torch": torch.__version__, "capability": ".".join(map(str, torch.cuda.get_device_capability()))}
    facts["cards"] = torch.cuda.device_count()
    (OUT / "card.json").write_text(json.dumps(facts))
    return facts


def amp() -> Figures:
    """Autocast as `fast` uses it, over float32 as written, without the compiler. Goal: 3x."""
    model, tokens = bert(depth=6)
    step = masked(model)
    # TF32 would be half the way to bfloat16; float32 as written is what people begin with.
    quick = fast(step, ways=["bf16", "fp16"], quiet=True)
    quick(tokens)
    eager, mine = (
        seconds(forward_and_backward(step, model, tokens)),
        seconds(forward_and_backward(quick, model, tokens)),
    )
    return {"eager_ms": 1000 * eager, "fast_ms": 1000 * mine, "speed": eager / mine, "line": quick.line}


def compiled_bert() -> Figures:
    """BERT-base in bfloat16, compiled over not compiled. Goal: +18 %."""
    model, tokens = bert()
    step = masked(model)
    way = fast(step, ways=["bf16+compiled"], quiet=True)
    way(tokens)

    def plain(batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return step(batch)

    eager, mine = seconds(forward_and_backward(plain, model, tokens)), seconds(forward_and_backward(way, model, tokens))
    return {"bf16_ms": 1000 * eager, "fast_ms": 1000 * mine, "gain_percent": 100 * (eager / mine - 1), "line": way.line}


def models() -> Figures:
    """The five models of the tests: none may be slower than eager."""
    found: Figures = {}
    for name, make in MODELS.items():
        task = make()
        model = task.model.cuda()
        batch = tuple(each.cuda() for each in task.batch(64, torch.Generator().manual_seed(0)))

        def step(pair: Any, task: Any = task, model: nn.Module = model) -> torch.Tensor:
            return task.loss(model, pair)

        quick = fast(step, quiet=True)
        quick(batch)
        eager = seconds(forward_and_backward(step, model, batch))
        found[name] = round(eager / seconds(forward_and_backward(quick, model, batch)), 3)
    return {**found, "worst": min(found.values())}


def energy() -> Figures:
    """Eight seconds of work: joules by the counter or estimated, and the mean power that follows."""
    one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    meter = Meter().start()
    started = time.perf_counter()
    while time.perf_counter() - started < 8:
        for _ in range(20):
            one @ one
        torch.cuda.synchronize()
    meter.stop()
    used = meter.read()
    taken = time.perf_counter() - started
    watts = None if used.card_joules is None else used.card_joules / taken
    return {"joules": used.card_joules, "method": used.card_method, "mean_watts": watts, "load": used.load}


def memory() -> Figures:
    """What comes back before a shrink, and after a failed cell."""
    held = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    del held
    freed = elastic.free_caches()

    def fails() -> None:
        mine = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
        raise RuntimeError(str(mine.shape))

    try:
        fails()
    except RuntimeError as error:
        failed = error
    before = torch.cuda.memory_allocated()
    said = tracebacks.free_after(failed, {})
    return {"shrink_bytes": freed.bytes, "traceback_bytes": before - torch.cuda.memory_allocated(), "said_bytes": said}


def _reduce(rank: int, world: int, port: int, sockets: bool) -> None:
    import torch.distributed as dist

    # Between two cards of one machine NCCL would use neither network: only so the two networks can be compared.
    os.environ |= {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": str(int(sockets))}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    data = torch.ones(16 << 20, device="cuda")
    taken = seconds(lambda: dist.all_reduce(data))
    if rank == 0:
        (OUT / f"reduce-{'sockets' if sockets else 'rdma'}").write_text(str(taken))
    dist.destroy_process_group()


def all_reduce() -> Figures:
    """64 MiB between two cards over RDMA and over sockets. Goal: 3 ms over 12 ms."""
    if torch.cuda.device_count() < 2:
        raise Skip("needs two cards")
    if not any(Path("/sys/class/infiniband").glob("*")):
        raise Skip("needs an RDMA device")
    found = {}
    for sockets in (False, True):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(_reduce, (2, port, sockets), nprocs=2)
        name = "sockets" if sockets else "rdma"
        found[f"{name}_ms"] = 1000 * float((OUT / f"reduce-{name}").read_text())
    return found


SECTIONS = {
    "card": card,
    "amp": amp,
    "bert": compiled_bert,
    "models": models,
    "energy": energy,
    "memory": memory,
    "all-reduce": all_reduce,
}

if __name__ == "__main__":
    row: dict[str, Any] = {"section": sys.argv[1]}
    try:
        if not torch.cuda.is_available():
            raise Skip("PyTorch sees no card")
        row |= {"status": "ok", "figures": SECTIONS[sys.argv[1]]()}
    except Skip as why:
        row |= {"status": "skipped", "reason": str(why)}
    print(json.dumps(row))
