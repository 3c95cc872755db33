"""The result of a trial in which a command is killed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """Action on a command, number of kills, and problems of the final result."""

    action: str
    problems: list[str]
    kills: int = 1
