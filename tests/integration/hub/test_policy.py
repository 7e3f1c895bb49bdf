"""The policy on every way into a real hub: form, API, an administrator, %gpu, by the groups that the hub knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.common import until
from support.hub import Hub
from support.stack import stack

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]

INTERNS = """
version: 1
rules:
  - name: interns
    groups: [interns]
    allow: {shares: [1/8, 1/4], environments: [default], sessions: 1}
  - name: administrators
    users: [admin]
    allow: {}
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    state = tmp_path_factory.mktemp("policy")
    (state / "policy.yaml").write_text(INTERNS)
    with stack(state) as made:
        yield Hub(made)


def test_an_intern_by_every_way(hub: Hub) -> None:
    with hub.user("admin") as admin, hub.user("ida") as ida:
        refused = ida.ask({"share": "1/8"})
        assert refused.status_code == 403, "in no group yet"
        assert "no rule" in refused.text
        for path, body in (("/hub/api/groups/interns", "{}"), ("/hub/api/groups/interns/users", '{"users": ["ida"]}')):
            answer = admin.browser.post(path, content=body, headers=admin._headers)
            assert answer.status_code in (200, 201), answer.text

        def shown(share: str) -> str:
            found = re.search(rf'<input[^>]*value="h100-80gb:{share}"[^>]*>', ida.form().text)
            assert found
            return found.group()

        until(lambda: "disabled" not in shown("1/4"), 60, "the hub's answer about groups to be asked again")
        assert "disabled" in shown("1/2")
        assert "The policy allows 1/8, 1/4, not 1/2." in ida.form().text
        assert "The policy allows 1/8, 1/4, not 1/2." in ida.submit({"share": "h100-80gb:1/2"}).text
        assert ida.ask({"share": "1/2"}).status_code == 403
        asked = admin.browser.post("/hub/api/users/ida/server", content='{"share": "1"}', headers=admin._headers)
        assert asked.status_code == 403, "whoever starts it, it is ida's"
        session = ida.start({"share": "1/8"})
        assert session["share"] == "1/8"
        said = ida.kernel()("get_ipython().run_line_magic('gpu', 'resize 1/2')")
        assert "The policy allows 1/8, 1/4, not 1/2." in said
        assert "1/8 → 1/4" in ida.kernel()("get_ipython().run_line_magic('gpu', 'resize 1/4')")
        assert ida.ask({"share": "1/8"}, "second").status_code == 403
        assert "1 session at once" in ida.ask({"share": "1/8"}, "second").text
        explained = hub.stack.command("policy", "explain", "ida")
        assert "groups interns" in explained
        assert "may not 1/2 h100-80gb: The policy allows 1/8, 1/4, not 1/2." in explained
        policy = Path(hub.stack.state / "policy.yaml")
        assert "good. 2 rules" in hub.stack.command("policy", "check", str(policy))
        assert ida.name in hub.stack.command("cost")
        assert ": whole" in hub.stack.command("ledger", "verify")
        rows = hub.stack.state / "ledger.csv"
        hub.stack.command("ledger", "export", str(rows))
        assert ",ida,,start," in rows.read_text()
        row = next(line.split(",")[0] for line in rows.read_text().splitlines() if ",ida,,start," in line)
        assert "-0.10 EUR" in hub.stack.command("ledger", "correct", row, "--reason", "a slow card", "--", "-0.10")
        assert "rules: interns, administrators" in hub.stack.command("policy", "show")
        policy.write_text("version: 1\nrules: nonsense\n")
        until(lambda: "the policy file is not used" in admin.form().text, 30, "the administrator to be told")
        assert ida.session()["share"] == "1/4"
