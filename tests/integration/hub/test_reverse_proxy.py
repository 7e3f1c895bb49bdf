"""Everything below a base URL behind nginx with TLS, set up as the how-to page says."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import websocket
from support.common import free_ports, until
from support.stack import Browser, Stack, stack

pytestmark = [pytest.mark.hub, pytest.mark.timeout(300), pytest.mark.case("hub-19")]

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "reverse-proxy.md"
HOST = "gpu.example.org"
BASE = "/gpu"


def nginx_config(folder: Path, port: int, behind: int) -> Path:
    """The page's configuration with the test's own port, certificate and places."""
    found = re.search(r"<!-- nginx -->\n```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    text = found[1]
    for was, now in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("127.0.0.1:8000", f"127.0.0.1:{behind}"),
        ("/etc/ssl/gpu.example.org.pem", f"{folder}/cert.pem"),
        ("/etc/ssl/gpu.example.org.key", f"{folder}/key.pem"),
    ):
        assert was in text, was
        text = text.replace(was, now)
    places = "\n".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{places}\n{text}\n}}\n"
    )
    return config


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, str, ssl.SSLContext]]:
    """A stack, its address behind nginx, and trust in the certificate there."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if nginx is None:
        pytest.skip("no nginx here: install it, on Debian as the package nginx-light")
    folder = tmp_path_factory.mktemp("nginx")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={HOST}"),
            *("-addext", f"subjectAltName=DNS:{HOST},IP:127.0.0.1"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    port = free_ports(8) + 7  # the stack takes the first four
    env = {"GPUSPAWNER_BASE_URL": f"{BASE}/", "GPUSPAWNER_PUBLIC_URL": f"https://{HOST}:{port}{BASE}/"}
    with stack(tmp_path_factory.mktemp("behind"), env=env) as made:
        process = subprocess.Popen([nginx, "-c", nginx_config(folder, port, made.port), "-p", folder])
        try:
            trust = ssl.create_default_context(cafile=str(folder / "cert.pem"))
            url = f"https://127.0.0.1:{port}"
            until(lambda: answers(f"{url}{BASE}/hub/health", trust), what="nginx to answer")
            yield made, url, trust
        finally:
            process.terminate()
            process.wait(10)


def answers(url: str, trust: ssl.SSLContext) -> bool:
    try:
        return httpx.get(url, verify=trust).status_code == 200
    except httpx.TransportError:
        return False


def test_the_whole_act_behind_nginx(behind: tuple[Stack, str, ssl.SSLContext]) -> None:
    stack, url, trust = behind
    public = url.replace("127.0.0.1", HOST)
    port = int(url.rpartition(":")[2])
    host = {"Host": f"{HOST}:{port}"}
    with Browser(base_url=url, verify=trust, timeout=60, headers=host) as browser:
        # sign in: wherever JupyterHub sends the browser, it is below the path, and no other host
        answer = browser.get(f"{BASE}/hub/login")
        assert answer.status_code == 200
        cookies = answer.headers.get_list("set-cookie")
        assert cookies
        for cookie in cookies:
            assert "secure" in cookie.lower(), cookie
            assert f"path={BASE}/" in cookie.lower(), cookie
            assert "domain=" not in cookie.lower()

        def xsrf() -> str:
            return [cookie.value for cookie in browser.cookies.jar if cookie.name == "_xsrf"][-1] or ""

        form = {"username": "ann", "password": stack.user_password, "_xsrf": xsrf()}
        answer = browser.post(f"{BASE}/hub/login", data=form, headers={"Referer": f"{public}{BASE}/hub/login"})
        assert answer.status_code == 302, answer.text[:300]
        assert answer.headers["location"].removeprefix(public).startswith(f"{BASE}/"), answer.headers["location"]

        # start by the API as the pages do it, with where the request comes from
        browser.get(f"{BASE}/hub/home")
        headers = {"X-XSRFToken": xsrf(), "Referer": f"{public}{BASE}/hub/home"}
        answer = browser.post(f"{BASE}/hub/api/users/ann/servers/deep", json={"share": "1/8"}, headers=headers)
        assert answer.status_code in (201, 202), answer.text
        model = f"{BASE}/hub/api/users/ann"
        ready = until(
            lambda: (browser.get(model, headers=headers).json()["servers"].get("deep") or {}).get("ready"), 120
        )
        assert ready
        answer = browser.post(f"{BASE}/hub/api/users/ann/tokens", json={}, headers=headers)
        token = {"Authorization": f"token {answer.json()['token']}"}

    server = f"{BASE}/user/ann/deep"
    with httpx.Client(base_url=url, verify=trust, timeout=60, headers={**host, **token}) as client:
        page = client.get(f"{server}/lab", follow_redirects=False)
        assert page.status_code in (200, 302)
        if page.status_code == 302:
            assert page.headers["location"].removeprefix(public).startswith(f"{server}/")

        # a kernel over its WebSocket
        kernel = client.post(f"{server}/api/kernels", json={}).json()["id"]
        assert run(f"wss://127.0.0.1:{port}{server}/api/kernels/{kernel}/channels", public, token, trust) == "2\n"

        # readings and a resize through the notebook server, and through our own service
        status = client.get(f"{server}/gpuspawner/api/status").json()
        assert (status["configured"], status["session"]["share"]) == (True, "1/8")
        answer = client.patch(f"{server}/gpuspawner/api/share", json={"share": "1/4"})
        assert answer.status_code == 200, answer.text
        session = answer.json()["session"]["id"]
        service = f"{BASE}/services/gpuspawner/api/v1"
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
