"""The chart's values: each has a comment, which is its documentation, and a place in the schema."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/gpuspawner"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def page() -> str:
    """The list of values as `make docs` makes it."""
    found = importlib.util.spec_from_file_location("docs_conf", ROOT / "docs/conf.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    text: str = module._chart()
    return text


def leaves(schema: Any, values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each value by its name, as far as the schema knows what is in it."""
    schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    known = schema.get("properties") if isinstance(values, dict) else None
    if not known or name.endswith("resources"):
        yield name, values
        return
    assert set(values) == set(known) - {"global"}, f"{name or 'values.yaml'} and the schema differ"
    for each, value in values.items():
        yield from leaves(known[each], value, f"{name}.{each}".lstrip("."))


def test_every_value_is_in_the_schema_and_on_the_page() -> None:
    told = dict(re.findall(r"^`([\w.]+)` \(default `(.*)`\)\n: \S.{10,}$", page(), re.MULTILINE))
    there = {name: json.dumps(value, ensure_ascii=False) for name, value in leaves(SCHEMA, VALUES)}
    assert told == there


def test_the_defaults_are_allowed() -> None:
    jsonschema.validate(VALUES, SCHEMA)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hubb": {}},
        {"hub": {"enable": True}},
        {"hub": {"baseUrl": "gpu"}},
        {"hub": {"existing": {"url": "hub:8081"}}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"image": {"tag": "a b"}},
        {"session": {"defaultShare": "1/3"}},
        {"session": {"storage": {"type": "disk"}}},
        {"session": {"storage": {"size": "-1Gi"}}},
        {"service": {"storage": {"storageClass": "Fast One"}}},
        {"service": {"chooseCard": "yes"}},
        {"idle": {"cullSeconds": 0}},
        {"idle": {"cullSeconds": "3600"}},
        {"agent": {"cards": "intel"}},
        {"agent": {"kubeletPath": "var/lib/kubelet"}},
        {"agent": {"maxUnavailable": 0}},
        {"simulation": {"cards": "2*h100; reboot"}},
        {"proxy": {"service": {"type": "Public"}}},
        {"proxy": {"service": {"port": 0}}},
        {"fullnameOverride": "a" * 41},
        {"priorityClasses": {"system": 2_000_000_000}},
    ],
    ids=lambda wrong: json.dumps(wrong)[:60],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_chart_and_distribution_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    found = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    assert chart["version"] == chart["appVersion"] == found[1]
