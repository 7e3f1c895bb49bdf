"""Everything behind nginx with TLS, below a base URL and at the root of a host, set up as the how-to pages say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import websocket
from support.common import free_ports, until
from support.stack import Browser, Stack, stack

pytestmark = [pytest.mark.hub, pytest.mark.timeout(300), pytest.mark.case("hub-19")]

PAGES = Path(__file__).parents[3] / "docs" / "how-to"


@dataclass(frozen=True)
class Public:
    """A stack and where it is served: `url` is nginx's address, `base` what comes before the hub's paths."""

    stack: Stack
    host: str
    base: str
    url: str
    trust: ssl.SSLContext


def block(page: str, mark: str) -> str:
    """What stands in the page's fenced block behind the mark."""
    found = re.search(rf"<!-- {mark} -->\n *```\w+\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    assert found, mark
    return found[1]


def changed(text: str, *changes: tuple[str, str]) -> str:
    for was, now in changes:
        assert was in text, was
        text = text.replace(was, now)
    return text


def make_certificate(folder: Path, host: str) -> None:
    """As the page says, with the test's places, and for the test's way to it by the loopback's number."""
    command = changed(
        block("tls.md", "openssl"),
        ("/etc/ssl/hub.example.org", f"{folder}/cert"),
        ("DNS:hub.example.org", "DNS:hub.example.org,IP:127.0.0.1"),
        ("hub.example.org", host),
    )
    subprocess.run(shlex.split(command.replace("\\\n", "")), check=True, capture_output=True)


def nginx_config(folder: Path, host: str, base: str, port: int, behind: int) -> Path:
    """The page's configuration with the test's own port and places."""
    text = changed(
        block("reverse-proxy.md", "nginx"),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("127.0.0.1:8000", f"127.0.0.1:{behind}"),
        ("/etc/ssl/gpu.example.org", f"{folder}/cert"),
        ("gpu.example.org", host),
        ("location /gpu/", f"location {base}/"),
    )
    places = "\n".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{places}\n{text}\n}}\n"
    )
    return config


@pytest.fixture(scope="module", params=[("gpu.example.org", "/gpu"), ("hub.example.org", "")], ids=["path", "root"])
def public(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Public]:
    """A stack behind nginx."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = caches / "gpuspawner/nginx/usr/sbin"  # where tools/test-programs puts it
    nginx = shutil.which("nginx") or shutil.which("nginx", path=f"/usr/sbin:/usr/local/sbin:{kept}")
    if nginx is None:
        pytest.skip("no nginx here: install it, on Debian as the package nginx-light")
    host, base = request.param
    folder = tmp_path_factory.mktemp("nginx")
    make_certificate(folder, host)
    port = free_ports(8) + 7  # the stack takes the first four
    env = {"GPUSPAWNER_PUBLIC_URL": f"https://{host}:{port}{base}/"}
    if base:
        env["GPUSPAWNER_BASE_URL"] = f"{base}/"
    with stack(tmp_path_factory.mktemp("behind"), env=env) as made:
        process = subprocess.Popen([nginx, "-c", nginx_config(folder, host, base, port, made.port), "-p", folder])
        try:
            trust = ssl.create_default_context(cafile=str(folder / "cert.pem"))
            url = f"https://127.0.0.1:{port}"
            until(lambda: answers(f"{url}{base}/hub/health", trust), what="nginx to answer")
            yield Public(made, host, base, url, trust)
        finally:
            process.terminate()
            process.wait(10)


def answers(url: str, trust: ssl.SSLContext) -> bool:
    try:
        return httpx.get(url, verify=trust).status_code == 200
    except httpx.TransportError:
        return False


def test_the_whole_act_behind_nginx(public: Public) -> None:
    stack, base, url, trust = public.stack, public.base, public.url, public.trust
    outside = url.replace("127.0.0.1", public.host)
    port = int(url.rpartition(":")[2])
    host = {"Host": f"{public.host}:{port}"}
    with Browser(base_url=url, verify=trust, timeout=60, headers=host) as browser:
        # sign in: wherever JupyterHub sends the browser, it is below the path, and no other host
        answer = browser.get(f"{base}/hub/login")
        assert answer.status_code == 200
        cookies = answer.headers.get_list("set-cookie")
        assert cookies
        for cookie in cookies:
            assert "secure" in cookie.lower(), cookie
            assert f"path={base}/" in cookie.lower(), cookie
            assert "domain=" not in cookie.lower()

        def xsrf() -> str:
            return [cookie.value for cookie in browser.cookies.jar if cookie.name == "_xsrf"][-1] or ""

        form = {"username": "ann", "password": stack.user_password, "_xsrf": xsrf()}
        answer = browser.post(f"{base}/hub/login", data=form, headers={"Referer": f"{outside}{base}/hub/login"})
        assert answer.status_code == 302, answer.text[:300]
        assert answer.headers["location"].removeprefix(outside).startswith(f"{base}/"), answer.headers["location"]

        # start by the API as the pages do it, with where the request comes from
        browser.get(f"{base}/hub/home")
        headers = {"X-XSRFToken": xsrf(), "Referer": f"{outside}{base}/hub/home"}
        answer = browser.post(f"{base}/hub/api/users/ann/servers/deep", json={"share": "1/8"}, headers=headers)
        assert answer.status_code in (201, 202), answer.text
        model = f"{base}/hub/api/users/ann"
        ready = until(
            lambda: (browser.get(model, headers=headers).json()["servers"].get("deep") or {}).get("ready"), 120
        )
        assert ready
        answer = browser.post(f"{base}/hub/api/users/ann/tokens", json={}, headers=headers)
        token = {"Authorization": f"token {answer.json()['token']}"}

    server = f"{base}/user/ann/deep"
    with httpx.Client(base_url=url, verify=trust, timeout=60, headers={**host, **token}) as client:
        page = client.get(f"{server}/lab", follow_redirects=False)
        assert page.status_code in (200, 302)
        if page.status_code == 302:
            assert page.headers["location"].removeprefix(outside).startswith(f"{server}/")

        # a kernel over its WebSocket
        kernel = client.post(f"{server}/api/kernels", json={}).json()["id"]
        assert run(f"wss://127.0.0.1:{port}{server}/api/kernels/{kernel}/channels", outside, token, trust) == "2\n"

        # readings and a resize through the notebook server, and through our own service
        status = client.get(f"{server}/gpuspawner/api/status").json()
        assert (status["configured"], status["session"]["share"]) == (True, "1/8")
        answer = client.patch(f"{server}/gpuspawner/api/share", json={"share": "1/4"})
        assert answer.status_code == 200, answer.text
        session = answer.json()["session"]["id"]
        service = f"{base}/services/gpuspawner/api/v1"
        answer = client.patch(f"{service}/sessions/{session}", json={"share": "1/2"})
        assert answer.status_code == 200, answer.text
        assert client.get(f"{service}/sessions/{session}").json()["share"] == "1/2"


def run(address: str, origin: str, token: dict[str, str], trust: ssl.SSLContext) -> str:
    """What `print(1 + 1)` prints in a kernel, asked as a page of `origin` asks."""
    head = [f"{name}: {value}" for name, value in token.items()]
    host = origin.partition("//")[2]
    socket = websocket.create_connection(
        address, timeout=60, header=head, origin=origin, host=host, sslopt={"context": trust}
    )
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "execute_request",
        "session": "s",
        "username": "",
        "version": "5.4",
    }
    content = {"code": "print(1 + 1)", "silent": False, "store_history": False, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    socket.send(json.dumps(message))
    try:
        while True:
            answer = json.loads(socket.recv())
            if answer["msg_type"] == "stream" and answer["parent_header"].get("msg_id") == header["msg_id"]:
                return str(answer["content"]["text"])
    finally:
        socket.close()
