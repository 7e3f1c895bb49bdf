"""Sessions do not ask people about Jupyter's news; an operator may have it so."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from conftest import start_jupyter, stop

NEWS = "@jupyterlab/apputils-extension:announcements"


@pytest.mark.parametrize(("wanted", "disabled"), [({}, True), ({NEWS: False}, False)], ids=["default", "undone"])
def test_the_news_are_off_until_an_operator_wants_them(tmp_path: Path, wanted: dict, disabled: bool) -> None:
    # as `jupyter labextension enable` writes it, or an operator by hand in /etc/jupyter/labconfig
    config = tmp_path / "config" / "labconfig"
    config.mkdir(parents=True)
    (config / "page_config.json").write_text(json.dumps({"disabledExtensions": wanted}))
    process, url, token = start_jupyter(tmp_path, {"JUPYTER_CONFIG_DIR": str(tmp_path / "config")})
    try:
        page = httpx.get(f"{url}lab", headers={"Authorization": f"token {token}"}, timeout=30, follow_redirects=True)
        assert page.status_code == 200
        text = page.text.partition('id="jupyter-config-data"')[2].partition(">")[2].partition("</script>")[0]
        assert (NEWS in json.loads(text)["disabledExtensions"]) is disabled
    finally:
        stop(process)
