"""What tools/images and tools/image share: buildah, what is kept, and the base of Debian's packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITE = "bookworm"
INCLUDE = "ca-certificates,python3"


def cache() -> Path:
    """The folder of all that is kept: GPUSPAWNER_CACHE, or gpuspawner in the user's cache folder."""
    given = os.environ.get("GPUSPAWNER_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(given) if given else Path(base) / "gpuspawner") / "images"


def run(*command: str | Path, **how: object) -> str:
    """Run a command; what it prints. Ends this program with its words where it fails."""
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how
    )
    if done.returncode:
        sys.exit(f"{Path(str(command[0])).name} failed:\n{done.stdout[-4000:]}")
    return done.stdout


def version() -> str:
    """The distribution's version: the tag of the images, and the chart's appVersion."""
    found = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert found
    return found[1]


def there(image: str) -> bool:
    """Whether an image of this name was built or pulled."""
    found = subprocess.run(["buildah", "inspect", "--type", "image", image], capture_output=True)
    return found.returncode == 0


def debian() -> str:
    """An image of nothing but Debian's packages, made once; its name."""
    name = f"localhost/gpuspawner-debian:{SUITE}"
    if there(name):
        return name
    if os.geteuid() or not shutil.which("debootstrap"):
        sys.exit("A base image is made as root with debootstrap (apt install debootstrap), or given: --base IMAGE.")
    print("== images: a base of Debian's packages", file=sys.stderr, flush=True)
    mirror: list[str] = []  # debootstrap's own
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"],
        capture_output=True,
        text=True,
    )
    for line in listed.stdout.splitlines():  # where this machine gets its own
        site, _, suite = line.partition(" ")
        if suite == SUITE:
            mirror = [site]
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache(), prefix="base-") as folder:
        run("debootstrap", "--variant=minbase", f"--include={INCLUDE}", SUITE, f"{folder}/root", *mirror)
        for unwanted in (
            "var/cache/apt/archives",
            "var/lib/apt/lists",
            "usr/share/doc",
            "usr/share/man",
            "usr/share/locale",
        ):
            shutil.rmtree(f"{folder}/root/{unwanted}", ignore_errors=True)
        for needed in ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial"):
            Path(folder, "root", needed).mkdir(parents=True)
        container = run("buildah", "from", "scratch").strip()
        try:
            run("buildah", "add", container, f"{folder}/root", "/")
            run("buildah", "commit", container, name)
        finally:
            run("buildah", "rm", container)
    return name


def build(file: str, target: str, name: str, **arguments: str) -> None:
    """Build a target of a Containerfile of this checkout, with build arguments by name."""
    how = ["--layers", "--isolation", "chroot"]
    for key, value in arguments.items():
        how += ["--build-arg", f"{key}={value}"]
    certificates = os.environ.get("SSL_CERT_FILE")
    if certificates:  # of a network with an authority of its own
        how += ["--volume", f"{certificates}:/run/certificates.pem:ro"]
        how += ["--build-arg", "SSL_CERT_FILE=/run/certificates.pem", "--build-arg", "PIP_CERT=/run/certificates.pem"]
    for variable in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
        if os.environ.get(variable):
            how += ["--build-arg", variable]
    downloaded = Path(os.environ.get("UV_CACHE_DIR") or Path.home() / ".cache/uv")
    downloaded.mkdir(parents=True, exist_ok=True)
    # kept from build to build, and out of the image
    how += ["--volume", f"{downloaded}:/root/.cache/uv"]
    run("buildah", "build", *how, "--target", target, "-t", name, "-f", ROOT / file, ROOT)
