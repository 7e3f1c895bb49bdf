"""The policy file on disk: read, checked, and read again when it changes. A broken one leaves the old in force."""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gpuspawner.errors import InvalidInput
from gpuspawner.service.policy.decide import Policy
from gpuspawner.service.policy.schema import PolicyFile
from gpuspawner.service.tariff import PriceList

log = logging.getLogger(__name__)

#: Larger than any policy that a person could read.
_LONGEST = 1 << 20


class PolicyError(InvalidInput):
    """A policy file that cannot be used; `field` is the place in it."""

    code = "policy_file"


class _Loader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
    """Refuses a key that stands twice, of which YAML would silently take the last, and anchors."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A node of the document."""
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """An object of the document."""
        keys = [key.value for key, _ in node.value]
        for key_node, _ in node.value:
            if keys.count(key_node.value) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} stands there twice", key_node.start_mark
                )
        return super().construct_mapping(node, deep)


def parse(text: str) -> PolicyFile:
    """The policy in `text`. Raises PolicyError, naming the place, what was given and what is allowed."""
    if len(text) > _LONGEST:
        raise PolicyError(f"The policy file is longer than {_LONGEST} characters.", code="policy_file")
    try:
        content = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PolicyError(f"The policy file is no YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise PolicyError("The policy file must be an object with the key version.", field="version")
    try:
        return PolicyFile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        said = first["msg"].removeprefix("Value error, ")
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        given = first.get("input")
        shown = "" if isinstance(given, dict | list) else f" Given: {given!r}."
        raise PolicyError(f"{field}: {said}.{shown}{more}", field=field, given=given) from error
    except RecursionError as error:
        raise PolicyError("The policy file is nested too deeply.") from error


@dataclass(frozen=True)
class InForce:
    """A policy file as it was read. `digest`: SHA-256 of its text; empty where there is none."""

    file: PolicyFile
    policy: Policy
    prices: PriceList
    digest: str = ""

    @classmethod
    def of(cls, file: PolicyFile, digest: str = "") -> InForce:
        """What follows from a file."""
        return cls(file, Policy.of(file), PriceList.of(file), digest)


class PolicySource:
    """The policy in force. `path`: None for none at all. `kept`: where the last good file is copied to, for a start
    with a broken one. Thread-safe."""

    def __init__(self, path: Path | None = None, kept: Path | None = None, *, required: bool = False) -> None:
        self.path = path
        self._kept = kept
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        #: why the file on disk is not what is in force; None where it is
        self.problem: str | None = None
        self.current = InForce.of(PolicyFile(version=1))
        if path is None:
            return
        if required and not path.exists():
            raise PolicyError(
                f"GPUSPAWNER_POLICY: there is no file {path}.", field="GPUSPAWNER_POLICY", given=str(path)
            )
        if kept is not None and kept.exists():
            self.current = self._read(kept)
            self.problem = "The policy file is gone; the last one stays in force."
        try:
            self._look(path)
        except PolicyError as error:
            if not self.current.digest:
                raise
            self._broken(error.message)

    def refresh(self) -> bool:
        """Read the file again if it has changed; whether another policy is in force now. Raises nothing."""
        if self.path is None:
            return False
        with self._lock:
            before = self.current
            try:
                self._look(self.path)
            except PolicyError as error:
                self._broken(error.message)
            return self.current is not before

    def _look(self, path: Path) -> None:
        try:
            stat = path.stat()
        except FileNotFoundError:
            if self.current.digest and self._seen is not None:
                self._seen = None
                self._broken("The policy file is gone; the last one stays in force.")
            return
        except OSError as error:
            raise PolicyError(f"The policy file cannot be read: {error.strerror}.") from error
        seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if seen == self._seen:
            return
        self._seen = seen
        self.current, self.problem = self._read(path), None
        log.info("policy %s is in force", self.current.digest[:12])
        self._keep(path)

    def _read(self, path: Path) -> InForce:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PolicyError(f"The policy file cannot be read: {error}.") from error
        return InForce.of(parse(text), hashlib.sha256(text.encode()).hexdigest())

    def _keep(self, path: Path) -> None:
        if self._kept is None:
            return
        new = self._kept.with_suffix(".new")
        try:
            new.write_bytes(path.read_bytes())
            new.replace(self._kept)
        except OSError:
            log.exception("the policy in force could not be copied to %s", self._kept)

    def _broken(self, why: str) -> None:
        self.problem = why
        log.error("the policy file is not used, the old one stays in force: %s", why)
