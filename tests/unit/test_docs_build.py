"""The documentation builds without a warning, and the pages made from the code hold what the code says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", ROOT / "docs", tmp_path / "html"],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    settings = (tmp_path / "html/reference/settings.html").read_text()
    for trait in ("LocalGPUSpawner.default_share", "GPUSpawnerLab.sample_seconds"):
        assert trait in settings
    schema = (tmp_path / "html/reference/openapi.html").read_text()
    assert "/api/v1/sessions/{session}</span>" in schema
    assert "memory_used_bytes" in schema
