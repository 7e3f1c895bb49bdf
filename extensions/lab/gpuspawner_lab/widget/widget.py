"""The widget's side in the kernel."""

from __future__ import annotations

import html
import threading
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from gpuspawner_lab import shrink
from gpuspawner_lab.ask import Refusal, get_session, patch_session
from gpuspawner_lab.magic import resize_line
from gpuspawner_lab.service_words import NO_CARD
from gpuspawner_lab.shares import ShareInputError, check_share, eighths, gib, shown

from .figures import Source
from .figures import figures as made
from .pulse import PATIENCE, Pulse

_HERE = Path(__file__).parent
#: Seconds that a new widget waits for its first figures. A reading takes milliseconds; a silent service takes longer.
_FIRST = 1.0
_LONGEST_NAME = 64

_source = Source()
_pulse = Pulse(_source.sample)
_shells: set[int] = set()


class GPUShare(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]
    """This session's share in a notebook cell: what it holds and uses now, and a resize.

    `figures` are the last ones read, with the time in `at`; `available` and `reason` say whether the driver could
    be read. All are kept in the notebook where it is saved with widget state. Without hub or card nothing is raised.
    """

    _esm = _HERE / "widget.js"
    _css = _HERE / "widget.css"

    figures = traitlets.Dict(read_only=True, help="What is known now; unknown is None.").tag(sync=True)
    asked = traitlets.Unicode("", read_only=True, help="The share that is being asked for, or empty.").tag(sync=True)
    result = traitlets.Dict(read_only=True, help="What came of the last resize: ok, message.").tag(sync=True)

    def __init__(self, **options: Any) -> None:
        if options:
            raise TypeError(f"GPUShare takes no settings, not {shown(sorted(options))}")
        self._guard = threading.Lock()
        self._first = threading.Event()
        super().__init__()
        self.set_trait("figures", made(None, [], None, None))
        self.on_msg(self._told)
        _listen_to_cells()
        # Who makes a widget shows it; the view says so itself from then on.
        _pulse.watch(self, "new")
        self._first.wait(_FIRST)

    @property
    def available(self) -> bool:
        """Whether the driver could be read."""
        return bool(self.figures["available"])

    @property
    def reason(self) -> str | None:
        """Why not, as a sentence; and what the service could not say."""
        reasons = [self.figures[name] for name in ("reason", "service_reason") if self.figures[name]]
        return " ".join(reasons) or None

    def refresh(self, figures: dict[str, Any]) -> None:
        """Show these figures; called by the sampler's thread."""
        with self._guard:
            self.set_trait("figures", figures)
        self._first.set()

    def resize(self, share: str) -> None:
        """Ask for another share, without waiting for the answer: `result` changes when it is there."""
        try:
            share = check_share(share)
        except ShareInputError as error:
            self._finish(False, str(error))
            return
        if self.figures["share"] == "none":
            self._finish(False, NO_CARD)
            return
        with self._guard:
            if self.asked:
                return
            self.set_trait("asked", share)
        # Here and not in the thread below: where the page uses no subshells this is the kernel's own thread.
        failures = shrink.free_caches() if eighths(share) < int(self.figures["eighths"] or 0) else []
        threading.Thread(target=self._ask, args=(share, failures), name="gpuspawner-resize", daemon=True).start()

    def close(self) -> None:
        """Take the widget off; the sampler ends with the last one."""
        _pulse.unwatch(self)
        super().close()

    def __repr__(self) -> str:
        state = self.figures
        if state["share"] == "none":
            return str(NO_CARD)
        if not state.get("available"):
            return f"GPUShare(available: false, reason: {self.reason})"
        used, allowed = gib(state["memory_used_bytes"]), gib(state["memory_allowed_bytes"])
        return f"{state['title']}: {used} of {allowed} GiB used at {state['at']}"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        found = super()._repr_mimebundle_(**options)
        if not found:
            return found
        _pulse.watch(self, "new")
        data, metadata = found if isinstance(found, tuple) else (found, {})
        # For readers that show no widgets.
        return {**data, "text/plain": repr(self), "text/html": f"<p>{html.escape(repr(self))}</p>"}, metadata

    def _ask(self, share: str, failures: list[str]) -> None:
        try:
            answer = resize_line(get_session(), patch_session(share=share))
            self._finish(True, " ".join([answer, *failures]))
        except Refusal as refusal:
            self._finish(False, " ".join([str(refusal), *failures]))
        _source.forget()
        _pulse.nudge()

    def _finish(self, ok: bool, message: str) -> None:
        with self._guard:
            self.set_trait("result", {"ok": ok, "message": message})
            self.set_trait("asked", "")

    def _told(self, _widget: Any, message: Any, _buffers: Any) -> None:
        """A message from a view. What is not one of ours is ignored."""
        if not isinstance(message, dict):
            return
        view, do = message.get("view"), message.get("do")
        if do == "resize":
            self.resize(message.get("share"))  # type: ignore[arg-type]
        elif isinstance(view, str) and view and len(view) <= _LONGEST_NAME:
            if do == "watch":
                _pulse.unwatch(self, "new")
                _pulse.watch(self, view, PATIENCE)
            elif do == "unwatch":
                _pulse.unwatch(self, view)


def _listen_to_cells() -> None:
    """Let the pulse know when cells run; once for each IPython."""
    try:
        from IPython import get_ipython
    except ImportError:
        return
    shell = get_ipython()  # type: ignore[no-untyped-call, unused-ignore]
    if shell is None or id(shell) in _shells:
        return
    _shells.add(id(shell))
    _pulse.cell_begins()  # the one that makes the widget
    shell.events.register("pre_run_cell", _pulse.cell_begins)
    shell.events.register("post_run_cell", _pulse.cell_ends)
