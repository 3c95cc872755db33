"""What the console shows of the steps of a command, and of a library's panic."""

from __future__ import annotations

import io
import os
import time

import pytest

from purgatory_udf.common import console
from purgatory_udf.common.console import CommandSteps, hidden_panics, report_step

PANICS = b"""
thread 'tokio-rt-worker' (22715) panicked at /home/x/object_store/src/buffered.rs:369:41:
Already shut down
stack backtrace:
   0: std::panicking::begin_panic
             at buffered.rs:1
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.

thread '<unnamed>' panicked at src/lib.rs:1:1:
again
"""


def test_panics_are_hidden_and_other_lines_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="full"), hidden_panics():
        os.write(2, b"before\n" + PANICS)
        with hidden_panics():
            os.write(2, b"between\n")
        os.write(2, PANICS + b"after\n")
        raise OSError("full")
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "before\nbetween\nafter\nlater\n"


class WritableTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_shows_newest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "SHOWN_AFTER", 0.0)
    terminal = WritableTerminal()
    with CommandSteps(lambda: (3, 40), terminal, every=0.001):
        for step in ("computing waits", "writing blame"):
            report_step(step)
            while f"{step} · 3 of 40 tasks" not in terminal.getvalue():
                time.sleep(0.001)


def test_newest_step_is_logged_without_terminal(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "FIRST_LINE_AFTER", 0.001)
    caplog.set_level("INFO")
    with CommandSteps(lambda: (3, 40), io.StringIO()):
        for step in ("computing waits", "writing blame"):
            report_step(step)
            while f"{step} · 3 of 40 tasks" not in caplog.messages:
                time.sleep(0.001)
    logged = len(caplog.messages)
    report_step("writing findings")
    assert len(caplog.messages) == logged


def test_short_commands_show_no_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    terminal = WritableTerminal()
    for stream in (terminal, io.StringIO()):
        with CommandSteps(lambda: (0, 0), stream):
            report_step("computing waits")
    assert (terminal.getvalue(), caplog.messages) == ("", [])
