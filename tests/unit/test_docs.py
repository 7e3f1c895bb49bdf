"""The documentation against the repository: links, make targets, variables, routes, models and prices."""

import re
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import pytest

from gpuspawner.service.app import create_app
from gpuspawner.service.policy.reference import page as policy_page
from gpuspawner.service.tariff import Tariff, money
from gpuspawner.share import GPUShare

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = {"node_modules", ".venv", ".venv-torch", ".git", "test-output", "lib", "build", "dist"}

PAGES = sorted(path for path in ROOT.rglob("*.md") if not NOT_OURS.intersection(path.relative_to(ROOT).parts[:-1]))
ENVIRONMENT = ROOT / "docs/reference/environment.md"
REST_API = ROOT / "docs/reference/rest-api.md"
SIMULATION = ROOT / "docs/reference/simulation.md"
PRICES = ROOT / "docs/how-to/change-prices-and-ports.md"

_LINK = re.compile(r"!?\[(?:[^\]\\]|\\.)*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_VARIABLE = re.compile(r"(?<![A-Za-z0-9_])GPUSPAWNER_[A-Z][A-Z_]*[A-Z](?![A-Za-z0-9_])")
_MAKE = re.compile(
    r"(?:`|^ {4,}|^\s*-?\s*|&& |; |\d )(?:[A-Z_]+=\S+ )*make ((?:-C \S+|[a-z][a-zA-Z0-9-]*))",
    re.MULTILINE,
)
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
#: Names that only guard C headers against being included twice.
_HEADER_GUARD = re.compile(r"_H\Z")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without what it shows as code, in which a link is no link."""
    text = _FENCE.sub("", page.read_text())
    lines = [line for line in text.splitlines() if not line.startswith("    ") or line.lstrip().startswith("![")]
    return _CODE.sub("", "\n".join(lines))


def anchors(page: Path) -> set[str]:
    """What a link may name after # on a page: its headings as they are usually turned into anchors."""
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", _FENCE.sub("", page.read_text()), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(words.replace(" ", "-"))
    return found


def links(page: Path) -> list[str]:
    return [link for link in _LINK.findall(prose(page)) if not re.match(r"[a-z][a-z0-9+.-]*:", link)]


def rows(page: Path) -> list[list[str]]:
    """The cells of all table rows of a page, without their backticks."""
    found = []
    for line in page.read_text().splitlines():
        if line.startswith("|"):
            found.append([cell.strip().strip("`") for cell in line.strip().strip("|").split("|")])
    return found


def sources() -> list[Path]:
    """The code in which a variable that people may set can be read."""
    found = [ROOT / "Makefile", ROOT / "jupyterhub_config.py", *sorted((ROOT / "tools").glob("*"))]
    for folder in ("gpuspawner", "extensions/lab/gpuspawner_lab", "images/runtime/gpuspawner_runtime"):
        for pattern in ("*.py", "*.c", "*.h", "Makefile"):
            found += sorted((ROOT / folder).rglob(pattern))
    return [path for path in found if path.is_file()]


def variables(paths: list[Path]) -> set[str]:
    found = set()
    for path in paths:
        found.update(_VARIABLE.findall(path.read_text(errors="replace")))
    return {variable for variable in found if not _HEADER_GUARD.search(variable)}


def test_there_are_pages() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/index.md"} <= {name(page) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in links(page):
        target, _, anchor = unquote(link).partition("#")
        place = (page.parent / target).resolve() if target else page
        lost = bool(anchor) and place.suffix == ".md" and place.exists() and anchor not in anchors(place)
        if lost or not place.exists() or not place.is_relative_to(ROOT):
            dead.append(link)
    assert not dead


def test_every_page_of_the_documentation_is_reached_from_its_index() -> None:
    seen, waiting = set(), [ROOT / "docs/index.md"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        targets = ((page.parent / unquote(link).partition("#")[0]).resolve() for link in links(page))
        waiting += [target for target in targets if target.suffix == ".md" and target.is_file()]
    assert {name(page) for page in PAGES if page.is_relative_to(ROOT / "docs")} <= {name(page) for page in seen}


def test_make_targets_that_the_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-zA-Z%][a-zA-Z0-9%_-]*)\s*:(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"up", "test", "stop"} <= targets
    patterns = [target.partition("%")[0] for target in targets if "%" in target]
    missing = []
    for page in PAGES:
        for named in _MAKE.findall(page.read_text()):
            if named.startswith("-C "):
                if not (ROOT / named[3:] / "Makefile").is_file():
                    missing.append(f"{name(page)}: make {named}")
            elif named not in targets and not any(named.startswith(start) and named != start for start in patterns):
                missing.append(f"{name(page)}: make {named}")
    assert not missing


def test_the_benchmarks_that_the_pages_name_exist() -> None:
    for page in PAGES:
        for named in re.findall(r"\bbench-([a-z0-9]+(?:-[a-z0-9]+)*)", page.read_text()):
            module = f"tests/bench/bench_{named.replace('-', '_')}.py"
            assert (ROOT / module).is_file(), f"{name(page)} names make bench-{named}"


def test_variables_that_the_pages_name_are_read_somewhere() -> None:
    known = variables([*sources(), *(ROOT / "tests").rglob("*.py")])
    unknown = {
        f"{name(page)}: {variable}"
        for page in PAGES
        for variable in _VARIABLE.findall(page.read_text())
        if variable not in known
    }
    assert not unknown


def test_variables_that_the_code_reads_stand_in_the_reference() -> None:
    assert variables(sources()) <= set(_VARIABLE.findall(ENVIRONMENT.read_text()))


def test_files_that_the_pages_name_exist() -> None:
    """`gpuspawner/…`, `tests/…`, `docs/…`, `extensions/…` and `tools/…` in backticks are places in the repository."""
    missing = []
    made = ("/bin", "/lib/", "/labextension")
    for page in PAGES:
        for path in re.findall(
            r"`((?:gpuspawner|tests|docs|extensions|requirements|tools)/[^`\s]*)`", page.read_text()
        ):
            if not any(part in path for part in (*made, "*", "NAME", "{")) and not (ROOT / path).exists():
                missing.append(f"{name(page)}: {path}")
    assert not missing


def test_the_rest_page_lists_the_routes_that_exist() -> None:
    # Routes are told without anything behind them being asked.
    app = create_app(cast(Any, None), cast(Any, None), Tariff(), "/")
    routes = {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, methods in app.openapi()["paths"].items()
        for method in methods
    }
    told = set(re.findall(r"^### `([A-Z]+ /[^`]*)`", REST_API.read_text(), re.MULTILINE))
    assert told == routes


def test_the_page_of_the_policy_file_is_made_from_its_schema() -> None:
    assert (ROOT / "docs/reference/policy.md").read_text() == policy_page()


def test_the_price_tables_are_the_default_tariff() -> None:
    tariff = Tariff()
    shares = {row[0]: row[1] for row in rows(PRICES) if row[0] in ("1/8", "1/4", "1/2", "1")}
    assert shares == {GPUShare(eighths).amount: str(percent) for eighths, percent in tariff.percent.items()}
    families = {row[0]: row[1] for row in rows(PRICES) if row[0] in tariff.whole_card or row[0] == "any other"}
    expected = {family: money(micros) for family, micros in tariff.whole_card.items()}
    assert families == {**expected, "any other": money(tariff.default)}


def test_the_simulated_models_are_those_of_the_code() -> None:
    code = (ROOT / "gpuspawner/simulation/src/common/models.c").read_text()
    models = dict(re.findall(r'\.slug = "([^"]+)",.*?\.memory_bytes = (\d+) \* MIB', code, re.DOTALL))
    assert models
    assert {row[0]: row[1] for row in rows(SIMULATION) if re.fullmatch(r"[a-z0-9]+-\d+gb", row[0])} == models
