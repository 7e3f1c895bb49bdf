"""The steps of a start, and a server's log as its user sees it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpuspawner.spawner.steps import PARTS, Steps, tail


async def test_steps_are_told_as_they_happen() -> None:
    steps = Steps()
    steps.take("place", 10, "Asked.")
    told = aiter(steps)
    first = await anext(told)
    assert (first["part"], first["message"]) == ("place", "Asked.")
    waiting = asyncio.ensure_future(anext(told))
    await asyncio.sleep(0)
    assert not waiting.done()
    steps.take("card", 40, "Chosen.")
    second = await waiting
    assert second["message"] == "Chosen."
    assert second["seconds"] >= first["seconds"] >= 0
    assert [(step["part"], step["state"]) for step in steps.shown] == [
        ("place", "done"),
        ("card", "now"),
        ("environment", "later"),
        ("server", "later"),
    ]


async def test_of_many_things_told_while_waiting_the_last_one_is_kept_and_nobody_misses_it() -> None:
    steps = Steps()
    steps.take("place", 10, "Asked.")
    early = aiter(steps)
    assert (await anext(early))["message"] == "Asked."
    for number in (3, 2, 2, 1):
        steps.take("place", 10, f"Number {number}.", waiting=True)
    assert steps.waiting
    assert [step["message"] for step in steps.taken] == ["Asked.", "Number 1."]
    assert (await anext(early))["message"] == "Number 1."
    late = aiter(steps)
    assert [(await anext(late))["message"] for _ in range(2)] == ["Asked.", "Number 1."]
    steps.take("card", 40, "Chosen.")
    assert not steps.waiting
    assert (await anext(early))["message"] == (await anext(late))["message"] == "Chosen."
    assert [step["message"] for step in steps.taken] == ["Asked.", "Number 1.", "Chosen."]


def test_before_the_first_step_the_first_part_is_under_way() -> None:
    assert [step["state"] for step in Steps().shown] == ["now", *["later"] * (len(PARTS) - 1)]


def test_the_log_shows_no_secrets_and_no_control_characters(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    lines = [f"line {n}" for n in range(100)]
    lines += [
        "token=abcdefgh12345",
        "Authorization: Bearer verysecretthing",
        "\x1b[31mred\x1b[0m\x07",
        "the key is hunter2hunter2",
        "again: hunter2\x1b[0mhunter2",
        "AWS_SECRET_ACCESS_KEY=abcdefgh12345",
        "cloning https://me:abcdefgh12345@example.org/it.git",
        "x" * 392 + "hunter2hunter2",
    ]
    log.write_text("\n".join(lines))
    shown = tail(log, hide=("hunter2hunter2",))
    text = "\n".join(shown)
    for secret in ("abcdefgh12345", "verysecretthing", "hunter2", "\x1b", "\x07"):
        assert secret not in text
    assert "red" in shown
    assert len(shown) == 25
    assert "line 0" not in shown
    assert tail(tmp_path / "missing") == ()


def test_of_a_line_of_which_the_begin_is_not_read_nothing_is_shown(tmp_path: Path) -> None:
    """What stands before a secret says that it is one."""
    log = tmp_path / "server.log"
    log.write_text("token=" + "abcdefgh" * 4096 + "\nthe last line\n")
    assert tail(log) == ("the last line",)
