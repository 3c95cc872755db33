"""Words that are numbers in compiled code."""

from __future__ import annotations

from enum import EnumMeta, IntEnum


class Numbers(EnumMeta):
    """Of words whose numbers compiled code takes for numbers (see `compiled`)."""


class Number(IntEnum, metaclass=Numbers):
    """A word, and the number that stands for it."""
