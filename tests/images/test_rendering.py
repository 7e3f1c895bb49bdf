"""The image for scenes and a desktop, without a card that draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import websocket
from support.common import until
from support.container import Share, lab

#: A red sphere on white: what is drawn, and who draws it. The message about that comes with the first cell.
_SPHERE = """
import pyvista as pv
plotter = pv.Plotter(off_screen=True, window_size=(200, 200))
plotter.set_background("white")
plotter.add_mesh(pv.Sphere(), color="red", lighting=False)
picture = plotter.screenshot(return_img=True)
print(picture[100, 100].tolist(), picture[2, 2].tolist(), "llvmpipe" in plotter.render_window.ReportCapabilities())
"""


def test_the_processor_draws_where_no_card_does_and_that_is_said(
    image: Callable[[str], str], quarter: Share, tmp_path: Path
) -> None:
    with lab(image("rendering"), tmp_path / "container", quarter) as made:
        assert "no card draws here" in made.said()
        kernel = made.kernel()
        said = kernel(_SPHERE, 180)
        assert "[255, 0, 0] [255, 255, 255] True" in said
        assert "No card draws here. The processor does, with Mesa's llvmpipe." in said
        assert "No card" not in kernel("print(1)"), "said once"
        assert "llvmpipe" in kernel("import os; print(os.environ['GPUSPAWNER_RENDERER'])")
        devices = made.run("sh", "-c", "XDG_RUNTIME_DIR=/tmp vulkaninfo --summary 2>/dev/null")
        assert "llvmpipe" in devices


def test_the_desktop_starts_behind_the_servers_proxy(image: Callable[[str], str], tmp_path: Path) -> None:
    with lab(image("rendering"), tmp_path / "container") as made:
        page = httpx.get(f"{made.url}desktop/", headers=made.headers, timeout=120, follow_redirects=True)
        assert page.status_code == 200, page.text
        address = f"{made.url.replace('http', 'ws', 1)}desktop-websockify/"
        headers = [f"Authorization: {made.headers['Authorization']}"]
        socket = websocket.create_connection(address, timeout=60, header=headers, subprotocols=["binary"])
        assert socket.recv()[:4] == b"RFB ", "the greeting of a VNC server"
        until(
            lambda: "xfwm4" in made.run("ps", "-eo", "args"), 120, lambda: made.run("ps", "-eo", "args") + made.said()
        )
        socket.close()
