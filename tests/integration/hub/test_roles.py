"""The how-to for each role, followed on a real hub: its policy file and its commands, as they stand on the page."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from support.common import until
from support.hub import Hub, User
from support.stack import PYTHON, stack

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[3] / "docs/how-to/who-may-and-who-pays.md").read_text()


def section(role: str) -> str:
    """What the page says to a role."""
    return PAGE.split(f"## As {role}\n")[1].split("\n## ")[0]


def commands(role: str) -> list[list[str]]:
    """The commands that the page has for a role, in order, about the current month (of the page's policy)."""
    (zone,) = re.findall(r"timezone: (\S+)", PAGE)
    month = datetime.now(ZoneInfo(zone)).strftime("%Y-%m")
    lines = re.findall(r"^    gpuspawner (.*)$", section(role), re.MULTILINE)
    return [re.findall(r'"[^"]*"|\S+', line.replace("2026-11", month)) for line in lines]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with stack(tmp_path_factory.mktemp("roles")) as made:
        yield Hub(made)


def token(admin: User, user: str) -> str:
    """A token of a user's, as the hub's token page makes it."""
    answer = admin.browser.post(f"/hub/api/users/{user}/tokens", content="{}", headers=admin._headers)
    assert answer.status_code == 201, answer.text
    made: str = answer.json()["token"]
    return made


def run(hub: Hub, words: list[str], as_: str | None = None, status: int = 0) -> str:
    """What a command prints, with somebody's token or on the machine itself."""
    env = dict(hub.stack.env) if as_ is None else {**hub.stack.env, "JUPYTERHUB_API_TOKEN": as_}
    words = [word.strip('"') for word in words]
    done = subprocess.run(
        [PYTHON, "-m", "gpuspawner.cli", *words],
        env=env,
        cwd=hub.stack.state,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def test_each_role_by_the_page(hub: Hub) -> None:
    text = section("an administrator")
    (policy,) = re.findall(r"(?:^    (?!gpuspawner).*\n)+", text, re.MULTILINE)
    leads = "".join(re.findall(r"^    .*\n", section("a group lead"), re.MULTILINE))
    policy = re.sub("^    ", "", policy, flags=re.MULTILINE)
    leads = re.sub("^    ", "  ", leads, flags=re.MULTILINE)
    policy = policy.replace("GPU-…", "GPU-00000000-0000").replace("budgets:", f"{leads}budgets:", 1)
    with hub.user("admin") as admin, hub.user("ann") as ann, hub.user("leo"):
        (hub.stack.state / "policy.yaml").write_text(policy)
        for group, user in (("staff", "ann"), ("course", "ann"), ("leads", "leo")):
            for path, body in ((group, "{}"), (f"{group}/users", f'{{"users": ["{user}"]}}')):
                answer = admin.browser.post(f"/hub/api/groups/{path}", content=body, headers=admin._headers)
                assert answer.status_code in (200, 201), answer.text
        check, explain, show = commands("an administrator")
        assert "good. 3 rules, 1 budgets" in run(hub, check)
        until(lambda: "rules: staff, interns, leads watch" in run(hub, show), 60, "the policy to be in force")
        until(lambda: "groups course, staff" in run(hub, explain), 60, "the hub's answer about groups")

        start, status, resize, cost, release = commands("a user")
        mine = token(admin, "ann")
        assert "Asked for 1/4" in run(hub, start, mine)
        until(lambda: re.search(r"ann: 1/4 of .*running", run(hub, status, mine)), 120, "the server to run")
        assert "1/4 → 1/2" in run(hub, resize, mine)
        assert f"{ann.session()['id']} " in run(hub, cost, mine)
        watched = run(hub, status, token(admin, "leo"))
        assert "ann: 1/2" in watched, "a lead sees it"
        assert "Stopped." in run(hub, release, mine)
        until(lambda: "no session runs" in run(hub, status, mine), 60, "the server to stop")

        for words in commands("finance"):
            if words[:2] == ["ledger", "correct"]:
                rows = (hub.stack.state / "november.csv").read_text().splitlines()
                words[2] = next(row.split(",")[0] for row in rows if ",ann,,start," in row)
            said = run(hub, words)
            if words[0] == "cost":
                by = words[words.index("--by") + 1] if "--by" in words else "user"
                assert {"user": "ann ", "group": "course ", "project": "(no project) "}[by] in said
                assert "not used" in said
        assert "-1.20 EUR" in said
        assert run(hub, ["cost"], mine).count("ann") == 1

        verify, again = commands("an auditor")
        head = re.search(r"head ([0-9a-f]{64}): whole", run(hub, verify))
        assert head
        run(hub, start, mine)
        until(lambda: "running" in run(hub, status, mine), 120, "the server to run")
        again[-1] = head[1]
        assert ": whole" in run(hub, again)
        assert "does not occur" in run(hub, [*again[:-1], "0" * 64], status=1)
        run(hub, release, mine)
