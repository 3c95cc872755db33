"""What coordinators wrote of their groups into the brokers' ordinary logs (`server.log`), in any log4j layout.

    [GroupCoordinator 2]: Preparing to rebalance group g in state PreparingRebalance with old generation 4 (…)
    [GroupCoordinator 2]: Stabilized group g generation 5 (__consumer_offsets-0) with 3 members

The classic coordinator and the one of Kafka 4 use the same words, all of them at INFO.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, tzinfo
from typing import NamedTuple

from purgatory_udf.errors import UserError
from purgatory_udf.requestlog.lines.files import open_text
from purgatory_udf.requestlog.lines.log_files import find_logs
from purgatory_udf.requestlog.lines.stamp import stamp_us

# A group prepares to rebalance; it has another generation; a member's session, the joins, the syncs have expired.
REBALANCE, GENERATION, SESSION, JOIN, SYNC = "rebalance", "generation", "session", "join", "sync"
KINDS = (REBALANCE, GENERATION, SESSION, JOIN, SYNC)


class Fact(NamedTuple):
    """One thing that happened to a group. `detail` is the old generation of a rebalance, the number of a generation,
    the member of a session."""

    broker: int
    group: str
    kind: str
    detail: str
    at_us: int


_BROKER = re.compile(r"\[GroupCoordinator (?:id=)?(\d+)[^]]*\]:? ?")
_SENTENCES = (
    (
        REBALANCE,
        re.compile(r"Preparing to rebalance group (?P<group>.+) in state \w+ with old generation (?P<detail>\d+)"),
    ),
    (GENERATION, re.compile(r"Stabilized group (?P<group>.+) generation (?P<detail>\d+) ")),
    (GENERATION, re.compile(r"Group (?P<group>.+) with generation (?P<detail>\d+) is now empty")),
    (SESSION, re.compile(r"Member (?P<detail>.+) in group (?P<group>.+) has failed, removing it from the group")),
    (
        SESSION,
        re.compile(r"Pending member (?P<detail>.+) in group (?P<group>.+) has been removed after session timeout"),
    ),
    (JOIN, re.compile(r"Group (?P<group>.+) removed dynamic members who haven't joined(?P<detail>):")),
)
_SYNC_EXPIRED = "on pending sync request expiration"


def facts_in_logs(paths: Sequence[str], zone: tzinfo = UTC) -> list[Fact]:
    """Of all files, in the order of time. Raises UserError where no coordinator has written."""
    facts: list[Fact] = []
    for file in find_logs(paths):
        with open_text(file.path) as lines:
            facts += facts_in(lines, zone)
    if not facts:
        raise UserError(f"{', '.join(paths)}: no line of a group coordinator in it (a server.log at INFO has them)")
    return sorted(facts, key=lambda fact: fact.at_us)


def facts_in(lines: Iterable[str], zone: tzinfo = UTC) -> Iterator[Fact]:
    for line in lines:
        coordinator = _BROKER.search(line)
        if coordinator is None:
            continue
        broker, at_us, said = int(coordinator[1]), stamp_us(line, zone), line[coordinator.end() :]
        if at_us is None:
            continue
        for kind, sentence in _SENTENCES:
            if match := sentence.match(said):
                yield Fact(broker, match["group"], kind, match["detail"], at_us)
                if kind == REBALANCE and _SYNC_EXPIRED in said:
                    yield Fact(broker, match["group"], SYNC, "", at_us)
                break
