"""What the console shows of a library's panic."""

from __future__ import annotations

import os

import pytest

from purgatory_udf.common.console import hidden_panics

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
