"""The chart of this checkout, through the real helm."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from . import build

CHART = Path(__file__).parents[3] / "helm" / "gpuspawner"
Values = Mapping[str, Any]


class HelmError(Exception):
    """What helm refuses; the text is its own."""


class Helm:
    """Runs helm against a cluster, or without one. Its own files are in a folder that ends with it."""

    def __init__(self, kubeconfig: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpuspawner-helm-")
        home = self._folder.name
        self._env = {f"HELM_{kind}_HOME": f"{home}/{kind.lower()}" for kind in ("CACHE", "CONFIG", "DATA")}
        self._env |= {"HOME": home, "PATH": "/usr/bin:/bin", "KUBECONFIG": str(kubeconfig or f"{home}/none")}

    def close(self) -> None:
        """Remove its files."""
        self._folder.cleanup()

    def __call__(self, *words: str, values: Values | None = None, timeout: float = 600.0) -> str:
        """What helm prints. Raises HelmError."""
        program = build.programs(["helm"])["helm"]
        more = ["--values", "-"] if values is not None else []
        done = subprocess.run(
            [program, *words, *more],
            input=json.dumps(values) if values is not None else "",
            env=self._env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            raise HelmError(done.stderr.strip())
        return done.stdout

    def lint(self, values: Values) -> str:
        """What lint says, which is strict: a warning is an error."""
        return self("lint", "--strict", str(CHART), values=values)

    def template(self, values: Values, release: str = "gpu", namespace: str = "hub") -> list[dict[str, Any]]:
        """The objects that an installation would make."""
        text = self("template", release, str(CHART), "--namespace", namespace, values=values)
        return [each for each in yaml.safe_load_all(text) if each]

    def install(self, release: str, namespace: str, values: Values, *more: str) -> str:
        """Install; the notes."""
        return self("install", release, str(CHART), "--namespace", namespace, *more, values=values)

    def upgrade(self, release: str, namespace: str, values: Values, *more: str) -> str:
        """Upgrade; the notes."""
        return self("upgrade", release, str(CHART), "--namespace", namespace, *more, values=values)
