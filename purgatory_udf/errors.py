"""What a user can get wrong: one clear sentence and exit status 2, never a stack trace."""

from __future__ import annotations


class UserError(Exception):
    """The input, options or configuration cannot be used; the message says what, where and what was expected."""


class LawBrokenError(Exception):
    """The run finished, but a law of the tables or a limit set by the user does not hold: exit status 1."""


class NeedsSparkError(Exception):
    """What was asked for cannot be had without Spark."""
