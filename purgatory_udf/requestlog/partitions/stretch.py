"""A stretch of time of which the events are said: the whole log's, or as much of a growing one as is settled by now."""

from __future__ import annotations

from typing import NamedTuple

NEVER = 2**62


class Stretch(NamedTuple):
    """From `from_us` until just before `until_us`. What was before has been said, as far as it was known."""

    from_us: int
    until_us: int

    def within(self, at_us: int) -> int:
        """When to say what happened then: what is found out late, at the beginning."""
        return max(at_us, self.from_us)


ALL = Stretch(-NEVER, NEVER)
