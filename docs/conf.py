"""Sphinx: `make docs` builds these pages into build/docs, with warnings as errors."""

from __future__ import annotations

import json
import re
from typing import Any

from gpuspawner import __version__

project = "gpuspawner"
author = "the gpuspawner contributors"
copyright = author  # noqa: A001 (the name is Sphinx's)
release = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "autodoc_traits"]
html_theme = "furo"
html_title = "gpuspawner"
myst_heading_anchors = 4
# Notebooks are shown as they were run: `tools/notebooks`.
nb_execution_mode = "off"
myst_enable_extensions = ["deflist"]
exclude_patterns = ["images/*"]
nitpicky = False

_TOC = """

```{toctree}
:hidden:
:glob:

tutorial/*
how-to/*
reference/*
explanation/*
```
"""


def _openapi() -> str:
    """The service's schema as a page: every request and every field of every body."""
    from typing import cast

    from gpuspawner.service.app import create_app
    from gpuspawner.service.tariff import Tariff

    # Routes are told without anything behind them being asked.
    schema = create_app(cast(Any, None), cast(Any, None), Tariff(), "/").openapi()
    lines = ["", "## Requests", ""]
    for path, methods in schema["paths"].items():
        for method, told in methods.items():
            lines += [f"- `{method.upper()} {path}`: {told.get('description') or told.get('summary', '')}"]
    for name, body in sorted(schema["components"]["schemas"].items()):
        lines += ["", f"## {name}", "", body.get("description", ""), ""]
        for field, told in body.get("properties", {}).items():
            kind = {key: told[key] for key in ("type", "anyOf", "items", "enum", "default", "$ref") if key in told}
            lines.append(f"- `{field}`: `{json.dumps(kind)}` {told.get('description', '')}")
    return "\n".join(lines) + "\n"


def _chart() -> str:
    """The chart's values: what the comments in values.yaml say of each, with its default."""
    from pathlib import Path

    import yaml

    text = (Path(__file__).parents[1] / "helm/gpuspawner/values.yaml").read_text()
    defaults = yaml.safe_load(text)
    lines: list[str] = ["", "## Values", ""]
    comment: list[str] = []
    above: list[str] = []
    for line in text.splitlines()[2:]:  # the first says what the file is
        found = re.match(r"( *)(?:# (.*)|([A-Za-z]+):)", line)
        if found is None or len(found[1]) // 2 > len(above):  # within a value
            comment = []
        elif found[2] is not None:
            comment.append(found[2])
        else:
            value = defaults
            names = [*above[: len(found[1]) // 2], found[3]]
            for name in names:
                value = value[name]
            if isinstance(value, dict) and line.endswith(":"):
                above = names
                lines += [f"### {found[3]}", ""] if len(names) == 1 else []
            else:
                above = names[:-1]
                default = json.dumps(value, ensure_ascii=False)
                lines += [f"`{'.'.join(names)}` (default `{default}`)", f": {' '.join(comment)}", ""]
            comment = []
    return "\n".join(lines) + "\n"


def _read(_app: Any, page: str, source: list[str]) -> None:
    if page == "index":  # here and not in the page, where other readers would show it as code
        source[0] += _TOC
    if page == "reference/openapi":
        source[0] += _openapi()
    if page == "reference/chart":
        source[0] += _chart()


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _read)
