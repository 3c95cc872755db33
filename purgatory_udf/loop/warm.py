"""Compile the loop, if this version of it has not been compiled here: `python -m purgatory_udf.loop.warm`."""

from __future__ import annotations

from purgatory_udf.loop.call import Call
from purgatory_udf.loop.state import Limits, State, step


def main() -> None:
    step(State(), Call(), 0, Limits({}, 0))


if __name__ == "__main__":
    main()
