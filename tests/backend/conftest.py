"""Signals in tests of the backend."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def handled_interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, also where pytest runs in a process that ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
