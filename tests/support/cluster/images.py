"""Container images without a registry: OCI layouts made of files of this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: Images are named so that nobody can pull them from anywhere.
REGISTRY = "gpuspawner.test"
PAUSE = f"{REGISTRY}/pause:1"
BUSYBOX = f"{REGISTRY}/busybox:1"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def of_the_chart() -> Path:
    """The archive of hub, proxy, service, agent and notebook as `make images` builds them, once for what they are made
    of."""
    done = subprocess.run([ROOT / "tools/images"], stdout=subprocess.PIPE, stderr=None, text=True, check=False)
    assert done.returncode == 0, "the images could not be built"
    return Path(done.stdout.strip())


def write(
    path: Path,
    name: str,
    files: Mapping[str, Path | bytes],
    *,
    links: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    user: str = "",
) -> Path:
    """Write an image `name` as a tar of an OCI layout at `path`. `files`: by their place in it; folders above them are
    made. What may be executed here may be there. `links`: by place, what each points to."""
    layer = _layer(files, links or {})
    packed = gzip.compress(layer, compresslevel=1, mtime=0)
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"application/vnd.oci.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    settings = {"Entrypoint": list(command), "User": user, "Env": [f"{k}={v}" for k, v in _environment(env).items()]}
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), "image.config.v1+json"),
        "layers": [blob(packed, "image.layer.v1.tar+gzip")],
    }
    entry = blob(json.dumps(manifest).encode(), "image.manifest.v1+json")
    entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    with tarfile.open(path, "w") as out:
        _add(out, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(out, "index.json", json.dumps(index).encode())
        for digest, content in blobs.items():
            _add(out, f"blobs/sha256/{digest}", content)
    return path


def busybox(path: Path, name: str = BUSYBOX) -> Path:
    """A static busybox with its programs' names in /bin. The same serves as pause: `sleep` does not end."""
    program = Path("/bin/busybox")
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    links = {f"/bin/{applet}": "busybox" for applet in listed if applet != "busybox"}
    command = ["/bin/busybox", "sleep", "2147483647"]
    return write(path, name, {"/bin/busybox": program, "/tmp/.keep": b""}, links=links, command=command)


def with_libraries(programs: Iterable[Path]) -> dict[str, Path]:
    """Programs and the libraries that they are linked with, by their places here."""
    found: dict[str, Path] = {}
    for program in programs:
        found[str(program)] = program
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for place in re.findall(r"(?:=> )?(/\S+) \(0x", listed):
            found[place] = Path(place).resolve()
    return found


def tree(folder: Path, place: str | None = None, leave_out: Iterable[str] = ("__pycache__",)) -> dict[str, Path]:
    """All files below a folder, by their places in an image."""
    found, left_out = {}, set(leave_out)
    for above, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each not in left_out]
        for each in names:
            source = Path(above) / each
            if source.is_file():
                found[f"{place or folder}/{source.relative_to(folder)}"] = source
    return found


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", **(env or {})}


def _layer(files: Mapping[str, Path | bytes], links: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        made: set[str] = set()
        for place in sorted({*files, *links}):
            inside = place.strip("/")
            parts = inside.split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                above = "/".join(parts[:depth])
                if above not in made:
                    made.add(above)
                    entry = tarfile.TarInfo(above)
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if above == "tmp" else 0o755
                    tar.addfile(entry)
            if place in links:
                entry = tarfile.TarInfo(inside)
                entry.type, entry.linkname = tarfile.SYMTYPE, links[place]
                tar.addfile(entry)
                continue
            source = files[place]
            executable = isinstance(source, Path) and os.access(source, os.X_OK)
            _add(
                tar,
                inside,
                source if isinstance(source, bytes) else source.read_bytes(),
                0o755 if executable else 0o644,
            )
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
