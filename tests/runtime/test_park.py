"""Parking a session and bringing it back in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from gpuspawner_runtime import park, unpark
from gpuspawner_runtime.park import container
from gpuspawner_runtime.park.container import ParkError

np = pytest.importorskip("numpy")


def shell(cells: list[str], folder: Path, home: Path) -> Any:
    """Run cells in an IPython of its own; what the last one printed as JSON."""
    code = (
        "import json, sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "for cell in json.loads(sys.stdin.read()):\n"
        "    done = shell.run_cell(cell, store_history=True)\n"
        "    done.raise_error()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(cells),
        cwd=folder,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_notebook_goes_on_in_another_kernel(tmp_path: Path, home: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/helpers.py").write_text("def double(x):\n    return 2 * x\n")
    said = shell(
        [
            f"import os, sys, math as m, random; os.chdir({str(tmp_path / 'work')!r})",
            f"sys.path.append({str(tmp_path / 'mine')!r})\nimport numpy as np, helpers\nfrom helpers import double",
            "factor = 3\ndef scaled(x): return factor * x\nadd = lambda x: x + factor",
            "class Point:\n    def __init__(self, x): self.x = x\n    def far(self): return scaled(self.x)",
            "p = Point(5); same = p; data = np.arange(1_000_000); part = data[10:20]; random.seed(7); random.random()",
            "6 * 7",
            "import threading; lock = threading.Lock(); holder = {'deep': [1, lock]}; log = open('log.txt', 'w')",
            "from gpuspawner_runtime import park\nimport contextlib, io\nsaid = io.StringIO()",
            "with contextlib.redirect_stdout(said): parked = park()",
            "with contextlib.redirect_stdout(said): parked._ipython_display_()",
            "import json; print(json.dumps([said.getvalue(), str(parked)]))",
        ],
        tmp_path,
        home,
    )
    text = said[1]
    assert said == [2 * f"{text}\n", text], "what is lost is said even if a cell ends with something else"
    found = shell(
        [
            "from gpuspawner_runtime import unpark\nback = unpark()",
            "factor = 10",
            "import json, os, sys\nprint(json.dumps({"
            "'same': same is p, 'far': p.far(), 'scaled': scaled(1), 'add': add(1), 'math': m.sqrt(16),"
            "'double': double(4),"
            "'part': [int(part[0]), part.base is data or bool(np.shares_memory(part, data))], 'sum': int(data.sum()),"
            "'folder': os.getcwd(), 'out': Out[6], 'cells': In[3], 'count': get_ipython().execution_count,"
            "'random': random.random(), 'lost': back.lost, 'text': str(back)}))",
        ],
        tmp_path,
        home,
    )
    import random

    random.seed(7)
    random.random()
    assert found.pop("random") == random.random()
    lost, text = found.pop("lost"), found.pop("text")
    assert found.pop("count") > 8
    assert found == {
        "same": True,
        "far": 50,  # with the new factor: functions see the session's variables, and no copy
        "scaled": 10,
        "add": 11,
        "math": 4.0,
        "double": 8,
        "part": [10, True],
        "sum": 499999500000,
        "folder": str(tmp_path / "work"),
        "out": 42,
        "cells": "factor = 3\ndef scaled(x): return factor * x\nadd = lambda x: x + factor",
    }
    assert set(lost) == {"lock", "holder", "log"}
    assert lost["holder"].startswith("holder['deep'][1]: lock: cannot pickle")
    assert "not here: log: TextIOWrapper" in text


def there_and_back(namespace: dict[str, Any], tmp_path: Path) -> tuple[dict[str, Any], Any]:
    park(tmp_path / "x.parked", namespace=namespace)
    found: dict[str, Any] = {}
    report = unpark(tmp_path / "x.parked", namespace=found)
    return found, report


def test_tensors_keep_what_they_share(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(4, 4)
    tied = torch.nn.Linear(4, 4)
    tied.weight = layer.weight
    layer(torch.ones(2, 4)).sum().backward()
    whole = torch.arange(24.0).reshape(4, 6)
    namespace = {
        "layer": layer,
        "tied": tied,
        "whole": whole,
        "column": whole[:, 2],
        "turned": whole.T,
        "half": torch.ones(3, dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
        "sparse": torch.eye(3).to_sparse(),
        "result": layer(torch.ones(1, 4)),
        "optimizer": torch.optim.AdamW(layer.parameters()),
    }
    namespace["optimizer"].step()
    found, report = there_and_back(namespace, tmp_path)
    assert report.lost == {}
    for name in ("whole", "column", "turned", "half", "empty"):
        assert torch.equal(found[name], namespace[name]), name
        assert found[name].stride() == namespace[name].stride()
        assert found[name].dtype == namespace[name].dtype
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3))
    assert found["tied"].weight is found["layer"].weight
    assert torch.equal(found["layer"].weight.grad, layer.weight.grad)
    found["column"].fill_(-1)
    assert (found["whole"][:, 2] == -1).all()
    assert (found["turned"][2] == -1).all()
    before = found["layer"].weight.clone()
    found["optimizer"].step()
    assert not torch.equal(before, found["layer"].weight), "the optimizer has the layer's own parameters"
    assert torch.equal(found["result"], namespace["result"].detach())
    assert report.changed == {"result": "a tensor without the graph that made it"}


def test_arrays(tmp_path: Path) -> None:
    base = np.asfortranarray(np.arange(20.0).reshape(4, 5))
    namespace = {
        "base": base,
        "every": base[::2, 1:],
        "turned": base.T,
        "texts": np.array(["a", None], dtype=object),
        "record": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        "zero": np.array(3.0),
        "none": np.empty((0, 2)),
    }
    found, report = there_and_back(namespace, tmp_path)
    assert report.lost == {}
    for name, array in namespace.items():
        assert np.array_equal(found[name], array), name
        assert found[name].flags.writeable
    found["every"][:] = 0
    assert found["base"][0, 1] == 0
    assert found["turned"][1, 0] == 0
    again, _ = there_and_back(found, tmp_path)
    again["base"][3, 0] = 99
    assert again["turned"][0, 3] == 99


class Refuses:
    """Pickles well and cannot be loaded."""

    def __init__(self) -> None:
        self.inner = ["inner"]

    def __setstate__(self, state: Any) -> None:
        raise ValueError("not today")


def test_one_that_cannot_be_loaded_takes_nothing_else_along(tmp_path: Path) -> None:
    shared, bad = ["shared"], Refuses()
    module = type(sys)("vanishing")
    exec("class Thing:\n    pass", module.__dict__)
    module.Thing.__module__ = "vanishing"
    sys.modules["vanishing"] = module
    namespace = {
        "first": shared,
        "bad": bad,
        "inner": {"of": bad.inner},
        "gone": [module.Thing()],
        "arrays": [np.arange(3), np.arange(4)],
        "last": {"shared": shared, "new": ["x"] * 3},
    }
    park(tmp_path / "x.parked", namespace=namespace)
    del sys.modules["vanishing"]
    found: dict[str, Any] = {}
    report = unpark(tmp_path / "x.parked", namespace=found)
    assert report.lost["bad"] == "bad: ValueError: not today"
    assert "vanishing.Thing (ModuleNotFoundError" in report.lost["gone"]
    assert set(report.lost) | set(found) == set(namespace)
    assert found["last"]["shared"] is found["first"] == ["shared"]
    assert found["last"]["new"] == ["x"] * 3
    assert [list(one) for one in found["arrays"]] == [[0, 1, 2], [0, 1, 2, 3]]
    assert found.get("inner", {"of": ["inner"]}) == {"of": ["inner"]}, "whole, or named"


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    park(tmp_path / "x.parked", namespace={"a": 1})

    def fails(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="No space"):
            park(tmp_path / "x.parked", namespace={"a": 2})
    found: dict[str, Any] = {}
    unpark(tmp_path / "x.parked", namespace=found)
    assert found == {"a": 1}
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["x.parked"]
    monkeypatch.setattr(os, "statvfs", lambda path: type("", (), {"f_bavail": 1, "f_frsize": 1})())
    with pytest.raises(ParkError, match="free at"):
        park(tmp_path / "x.parked", namespace={"a": 2})


class Bomb:
    """Says when it was loaded."""

    went_off = threading.Event()

    def __reduce__(self) -> Any:
        return _go_off, ()


def _go_off() -> str:
    Bomb.went_off.set()
    return "went off"


def test_every_byte_is_compared_before_anything_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.parked"
    park(path, namespace={"bomb": Bomb(), "data": np.arange(100_000), "text": "x" * 100})
    good = path.read_bytes()
    for at in (0, 9, 500, len(good) // 2, len(good) - 60, len(good) - 1):
        damaged = bytearray(good)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ParkError, match=r"damaged|changed|no parked|no complete"):
            unpark(path, namespace={})
    for size in (0, 10, len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(ParkError):
            unpark(path, namespace={})
    assert not Bomb.went_off.is_set()
    path.write_bytes(good)
    unpark(path, namespace={})
    assert Bomb.went_off.is_set()


def test_a_file_from_elsewhere_is_not_loaded_unless_you_say_so(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.parked"
    monkeypatch.setenv("HOME", str(tmp_path / "attacker"))
    park(path, namespace={"code": "harmless"})
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(ParkError, match="was not parked by you here") as refused:
        unpark(path, namespace={})
    assert refused.value.code == "foreign"
    found: dict[str, Any] = {}
    unpark(path, namespace=found, foreign=True)
    assert found == {"code": "harmless"}
    assert (container.state_folder() / "key").stat().st_mode & 0o777 == 0o600


def test_a_file_that_others_may_write_or_a_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parked"
    park(path, namespace={"a": 1})
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o622)
    with pytest.raises(ParkError, match="Others may write"):
        unpark(path, namespace={}, foreign=True)
    path.chmod(0o600)
    link = tmp_path / "y.parked"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        unpark(link, namespace={})
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(ParkError, match="belongs to another user"):
            unpark(path, namespace={})


@pytest.mark.parametrize("name", ["", ".hidden", "a b", "x" * 101])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(ParkError, match="is no name"):
        park(name, namespace={})


def test_what_dill_cannot_say(tmp_path: Path) -> None:
    """dill stops at the first variable that it cannot save and names its kind; here the rest is saved, and it is
    named."""
    dill = pytest.importorskip("dill")
    namespace = {"good": [1, 2], "bad": (one for one in "abc"), "also": {"x": 1}}
    with pytest.raises(TypeError, match="generator"):
        dill.dumps(namespace)
    found, report = there_and_back(namespace, tmp_path)
    assert found == {"good": [1, 2], "also": {"x": 1}}
    assert report.lost == {"bad": "bad: generator: cannot pickle 'generator' object"}


def test_a_kernel_that_gives_way_says_what_became_of_it_and_comes_back(tmp_path: Path) -> None:
    home, work = tmp_path / "h", tmp_path / "w"
    for folder in (home, work):
        folder.mkdir()
    act = "from gpuspawner_runtime.park.preempted import save, restore\n"
    file = home / ".local/state/gpuspawner-runtime/parked/p.parked"
    saved = shell(["step = 42\ndef more():\n    return step + 1", f"{act}print(save('p'))"], work, home)
    assert saved == {"bytes": file.stat().st_size}
    back = shell([f"{act}print('[' + restore('p') + ',', more(), ']')"], work, home)
    assert back[0]["variables"] >= 2
    assert back[1] == 43
    assert not file.exists(), "brought back once"

    lost = shell(["import threading\nheld = threading.Lock()", f"{act}print(save('p'))"], work, home)
    assert "held" in lost["problem"]
    assert not file.exists(), "what is not whole is not kept"
    assert "problem" in shell([f"{act}print(restore('p'))"], work, home)
