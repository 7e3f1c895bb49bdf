"""One machine for a lab of ten, started as the unit of the how-to page starts it."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.common import until
from support.hub import Hub, User
from support.stack import Stack

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
#: What systemd gives a service of the system, which has no HOME.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def unit() -> str:
    """The page's unit, with this checkout in place of the page's."""
    page = (ROOT / "docs" / "how-to" / "lab-box.md").read_text()
    found = re.search(r"<!-- unit -->\n *```ini\n(.*?)```", page, re.DOTALL)
    assert found
    return re.sub(r"^ +", "", found[1], flags=re.MULTILINE).replace("/opt/gpuspawner", str(ROOT))


@pytest.fixture
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    state = tmp_path_factory.mktemp("box") / "state"
    read = configparser.ConfigParser(strict=False)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string(unit())
    service = read["Service"]
    assert (service["KillSignal"], service["KillMode"]) == ("SIGINT", "process")  # as Stack.down ends it
    made = Stack(state, "2*h100-80gb", command=shlex.split(service["ExecStart"]))
    node = shutil.which("node")
    assert node is not None
    kept = {name: value for name, value in made.env.items() if name.startswith("GPUSPAWNER_")}
    made.env = {**kept, "PATH": f"{PATH}:{Path(node).parent}"}
    try:
        made.up()
        yield Hub(made)
    finally:
        made.end()


def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("no systemd-analyze here")
    file = tmp_path / "gpuspawner.service"
    file.write_text(unit())
    done = subprocess.run([verify, "verify", "--man=no", file], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if "gpuspawner" in line]
    assert said == []


def test_ten_people_at_once(box: Hub) -> None:
    names = [f"person{n}" for n in range(10)]
    with ExitStack() as signed_in, ThreadPoolExecutor(2) as pool:
        people: list[User] = [signed_in.enter_context(box.user(name)) for name in names]
        sessions = list(pool.map(lambda user: user.start({"share": "1/8"}), people))
        assert len({session["id"] for session in sessions}) == 10
        assert box.free_eighths() == 6
        code = "import os; print(os.getuid(), os.path.expanduser('~'))"
        seen = list(pool.map(lambda user: user.kernel()(code).split(), people[:3]))
        assert len({home for _, home in seen}) == 3
        if sessions[0]["grade"] != "advisory" and os.geteuid() == 0:
            assert len({uid for uid, _ in seen}) == 3
        # six eighths are left, on one card or on two
        whole = people[0].ask({"share": "1"}, "more")
        assert whole.status_code == 409
        assert "A whole card cannot be started now." in whole.json()["message"]
        assert {line.split(":")[0] for line in box.stack.command("status").splitlines()[1:]} == set(names)

        # a restart of the unit leaves everybody's server alone
        box.stack.down()
        box.stack.up()
        until(lambda: all(user.server().get("ready") for user in people), 60, "the hub to know its servers")
        assert [user.session()["id"] for user in people] == [session["id"] for session in sessions]
        assert "Ended 10 servers." in box.stack.stop()
        box.stack.up()
        assert box.free_eighths() == 16
