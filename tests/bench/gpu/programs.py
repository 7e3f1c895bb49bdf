"""The programs that shim.sh's sections run, each in a process of its own; each prints JSON, a line for each answer."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

CHUNK = 256 << 20


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


def torch_or_end() -> Any:
    """PyTorch with a card, or the end of this program with what is missing."""
    try:
        import torch
    except ImportError as error:
        say({"missing": f"no PyTorch: {error}"})
        sys.exit(0)
    if not torch.cuda.is_available():
        say({"missing": "PyTorch sees no card"})
        sys.exit(0)
    return torch


class Card:
    """The driver API, by hand: what it takes to fill a card."""

    def __init__(self, path: str = "libcuda.so.1") -> None:
        self.cuda = ctypes.CDLL(path)
        self.held: list[ctypes.c_uint64] = []
        self.bytes = 0
        context = ctypes.c_void_p()
        for code in (
            self.cuda.cuInit(0),
            self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
            self.cuda.cuCtxSetCurrent(context),
        ):
            if code:
                raise OSError(f"the driver answers {code}")

    def info(self) -> dict[str, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return {"free": free.value, "total": total.value, "used": total.value - free.value}

    def fill(self) -> dict[str, int]:
        """Allocate until refused, in ever smaller pieces. Bytes held now, and the driver's code."""
        size, code = CHUNK, 0
        while size >= 2 << 20:
            pointer = ctypes.c_uint64()
            refused = self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
            if refused:
                code, size = refused, size // 2
            else:
                self.held.append(pointer)
                self.bytes += size
        return {"bytes": self.bytes, "code": code}

    def empty(self) -> dict[str, int]:
        while self.held:
            self.cuda.cuMemFree_v2(self.held.pop())
        self.bytes = 0
        return self.info()


def driver() -> None:
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    say({"cuda": f"{version.value // 1000}.{version.value % 1000 // 10}"})


def fill(path: str = "libcuda.so.1") -> None:
    say(Card(path).fill())


class TorchCard:
    """The same by PyTorch's allocator, which keeps what it has until it is told to empty its cache."""

    def __init__(self) -> None:
        self.torch = torch_or_end()
        self.held: list[Any] = []

    def info(self) -> dict[str, int]:
        free, total = self.torch.cuda.mem_get_info()
        return {"free": free, "total": total, "used": self.torch.cuda.memory_reserved()}

    def fill(self) -> dict[str, int]:
        try:
            while True:
                self.held.append(self.torch.empty(CHUNK, dtype=self.torch.uint8, device="cuda"))
        except self.torch.cuda.OutOfMemoryError:
            return {"bytes": self.torch.cuda.memory_reserved(), "code": 2}

    def empty(self) -> dict[str, int]:
        self.held.clear()
        self.torch.cuda.empty_cache()
        return self.info()


def steps(kind: str) -> None:
    """fill, info and empty, by order on stdin."""
    card = TorchCard() if kind == "torch" else Card()
    for line in sys.stdin:
        say(getattr(card, line.strip())())


def torch_program(what: str, allowed: str) -> None:
    torch = torch_or_end()
    if what == "caching":
        held, code = [], "none"
        try:
            while sum(t.numel() for t in held) < 2 * int(allowed):
                held.append(torch.empty(CHUNK, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            code = "OutOfMemoryError"
        reserved = torch.cuda.memory_reserved()
        held.clear()
        torch.cuda.empty_cache()
        say(
            {
                "reserved_bytes": reserved,
                "error": code,
                "held": reserved <= int(allowed),
                "after_empty_cache": torch.cuda.memory_reserved(),
            }
        )
    elif what == "graphs":
        static = torch.ones(1 << 20, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            static * 2
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = static * 2 + 1
        static.fill_(3)
        graph.replay()
        torch.cuda.synchronize()
        say({"right": bool((result == 7).all().item())})
    else:
        function = torch.compile(lambda x: (x.sin() ** 2 + x.cos() ** 2).sum())
        value = function(torch.rand(1 << 20, device="cuda")).item()
        say({"right": abs(value - (1 << 20)) < 1})


def busy(seconds: str) -> None:
    """Matrix products for some seconds: how many are done in a second."""
    torch = torch_or_end()
    a = torch.rand(2048, 2048, device="cuda")
    for _ in range(10):
        a @ a
    torch.cuda.synchronize()
    done, begin = 0, time.monotonic()
    while time.monotonic() - begin < float(seconds):
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()
        done += 20
    say({"units_per_second": done / (time.monotonic() - begin)})


def _timed(step: Any, warm: int, times: int, wait: Any) -> float:
    for _ in range(warm):
        step()
    wait()
    begin = time.perf_counter()
    for _ in range(times):
        step()
    wait()
    return (time.perf_counter() - begin) * 1000 / times


def train() -> None:
    torch = torch_or_end()
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.rand(512, 2048, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    say({"ms": _timed(step, 20, 100, torch.cuda.synchronize)})


def small() -> None:
    """A frame of a renderer by its shape: 2,000 small kernels one after the other."""
    torch = torch_or_end()
    x = torch.rand(64, 64, device="cuda")

    def frame() -> None:
        for _ in range(2000):
            x.add_(1e-9)

    say({"ms": _timed(frame, 3, 20, torch.cuda.synchronize)})


def egl() -> None:
    """Off-screen rendering with VTK over EGL, where both are there."""
    try:
        from vtkmodules.vtkFiltersSources import vtkSphereSource
        from vtkmodules.vtkRenderingCore import vtkActor, vtkPolyDataMapper, vtkRenderer
        from vtkmodules.vtkRenderingOpenGL2 import vtkEGLRenderWindow
    except ImportError as error:
        say({"missing": f"no VTK with EGL: {error}"})
        return
    sphere = vtkSphereSource()
    sphere.SetThetaResolution(600)
    sphere.SetPhiResolution(600)
    mapper, actor, renderer, window = vtkPolyDataMapper(), vtkActor(), vtkRenderer(), vtkEGLRenderWindow()
    mapper.SetInputConnection(sphere.GetOutputPort())
    actor.SetMapper(mapper)
    renderer.AddActor(actor)
    window.SetSize(1920, 1080)
    window.AddRenderer(renderer)

    def frame() -> None:
        renderer.GetActiveCamera().Azimuth(1)
        window.Render()

    say({"ms": _timed(frame, 20, 200, window.WaitForCompletion)})


PROGRAMS = {
    "driver": driver,
    "fill": fill,
    "steps": steps,
    "torch": torch_program,
    "busy": busy,
    "train": train,
    "small": small,
    "egl": egl,
}

PROGRAMS[sys.argv[1]](*sys.argv[2:])
