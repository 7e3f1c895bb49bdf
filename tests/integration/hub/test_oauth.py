"""The example configurations for sign-in by GitHub, GitLab and OpenID Connect, each on a real hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from support.identity import CLIENT, SECRET, Person, Provider, provider
from support.stack import Stack

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs/how-to/oauth"

pytestmark = [pytest.mark.hub, pytest.mark.timeout(240)]


def sign_in(stack: Stack, at: Provider, login: str) -> tuple[httpx.Client, httpx.Response]:
    """Sign in as a browser does, by the provider; the client with its cookies and the last page."""
    at.signed_in = login
    client = httpx.Client(base_url=stack.url, timeout=60, follow_redirects=True)
    return client, client.get("/hub/oauth_login")


def model(client: httpx.Client, login: str) -> dict[str, Any]:
    xsrf = next(cookie.value for cookie in client.cookies.jar if cookie.name == "_xsrf" and cookie.path == "/hub/")
    headers = {"X-XSRFToken": xsrf or "", "Referer": f"{client.base_url}/hub/home"}
    answer = client.get(f"/hub/api/users/{login}", headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    ("example", "organization", "member", "admin", "groups"),
    [
        ("github", "my-lab", ["students", "gpu-large"], "a-login", ["gpu-large", "students"]),
        ("gitlab", "my-lab", ["my-lab", "my-lab/vision"], "a-login", ["my-lab", "my-lab/vision"]),
        ("oidc", "", ["gpu-users", "staff"], None, ["gpu-users", "staff"]),
    ],
)
def test_members_sign_in_with_their_groups_and_nobody_else_does(
    example: str, organization: str, member: list[str], admin: str | None, groups: list[str], tmp_path: Path
) -> None:
    boss = Person(admin or "boss", ["gpu-admins"] if admin is None else member)
    people = [Person("ada", member, ["gpu-large-elsewhere"]), boss, Person("mallory", [], member), Person("admin", [])]
    with provider(organization, *people) as at:
        made = Stack(
            tmp_path / "state",
            "1*h100-80gb",
            {
                "GPUSPAWNER_HUB_CONFIG": str(EXAMPLES / f"{example}.py"),
                "OAUTH_CLIENT_ID": CLIENT,
                "GITHUB_URL": at.url,
                "GITLAB_URL": at.url,
                "OIDC_ISSUER": f"{at.url}/realms/lab",
            },
        )
        at.callback = made.env["OAUTH_CALLBACK_URL"] = f"{made.url}/hub/oauth_callback"
        secrets = tmp_path / "state/secrets"
        secrets.mkdir(parents=True, mode=0o700)
        secrets.parent.chmod(0o700)
        (secrets / "oauth_client_secret").write_text(SECRET + "\n")
        try:
            made.up()
            # the default's passwords count for nothing here, so they are not shown
            assert "OAuthenticator)" in made.output
            assert made.user_password not in made.output
            assert made.secret("admin_password") not in made.output
            client, page = sign_in(made, at, "ada")
            assert page.status_code == 200, page.text[:2000]
            ada = model(client, "ada")
            assert sorted(ada["groups"]) == groups
            assert not ada["admin"]
            assert client.get("/hub/admin").status_code == 403
            for stranger in ("mallory", "admin"):
                client, page = sign_in(made, at, stranger)
                assert page.status_code == 403, (stranger, page.status_code)
                assert client.get("/hub/home").url.path == "/hub/login"
            client, page = sign_in(made, at, boss.login)
            assert page.status_code == 200
            assert model(client, boss.login)["admin"]
            # nobody comes in by the passwords of the embedded default
            with made.browser() as eve:
                eve.get("/hub/login")
                fields = {"username": "eve", "password": made.user_password, "_xsrf": eve.xsrf("/hub/")}
                assert eve.post("/hub/login", data=fields).status_code in (400, 401, 403)
                assert eve.get("/hub/home", follow_redirects=True).url.path == "/hub/login"
        finally:
            made.end()
    log = "".join(path.read_text(errors="replace") for path in (tmp_path / "state/logs").glob("*.log"))
    assert SECRET not in log
