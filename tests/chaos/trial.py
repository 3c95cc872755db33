"""One trial of a command that is killed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """What was done to a command, and what was wrong in the end."""

    how: str
    wrong: list[str]
    kills: int = 1
