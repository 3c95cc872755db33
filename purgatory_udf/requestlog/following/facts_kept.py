"""Which facts of a partition the next step still needs, and what of them is fixed by now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from purgatory_udf.requestlog.partitions.stretch import Stretch
from purgatory_udf.requestlog.requests.facts import Append, Copied, Delivered, Fact, Position, Sight, Trim, Trouble
from purgatory_udf.requestlog.requests.tries import Tries, Try

# How far back the rules look from what they date.
LOOK_BACK_US = 15_000_000


# A fact that tells of one moment.
Single = Append | Position | Sight | Try | Delivered | Trouble | Trim | Copied


def moment_of(fact: Single) -> int:
    """Of what a fact tells."""
    # Of all that a step does it is done most often: no pattern is matched.
    if isinstance(fact, Append):
        return fact.start_us
    return fact.until_us if isinstance(fact, Sight) else fact.at_us


def kept(facts: Iterable[Fact], until_us: int) -> Iterator[Fact]:
    """Those of the last seconds before `until_us`; of older ones the last that say where a reader, the log and the
    leadership were."""
    before_us = until_us - LOOK_BACK_US
    last: dict[tuple[object, ...], Single] = {}
    for fact in _parted(facts, before_us):
        if isinstance(fact, Tries) or moment_of(fact) >= before_us:
            yield fact
        elif (what := _standing(fact)) is not None:
            known = last.get(what)
            if known is None or _later(fact, known):
                last[what] = fact
    yield from last.values()


def _parted(facts: Iterable[Fact], at_us: int) -> Iterator[Fact]:
    """Tries do not lie before and after."""
    for fact in facts:
        if isinstance(fact, Tries):
            yield from fact.since(at_us)
        else:
            yield fact


def _standing(fact: Single) -> tuple[object, ...] | None:
    match fact:
        case Position() | Try():
            return type(fact), fact.replica
        case Append() if fact.base >= 0:
            return (Append,)
        case Trouble():
            return (Trouble,)
        case _:
            return None


def _later(fact: Single, than: Single) -> bool:
    return (moment_of(fact), getattr(fact, "base", 0)) >= (moment_of(than), getattr(than, "base", 0))


def is_said(append: Append, stretch: Stretch) -> bool:
    """Whether its place in the log has been told, and stays."""
    return append.end >= 0 and append.base >= 0 and stretch.within(append.check_us) < stretch.until_us
