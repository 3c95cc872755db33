"""Groups of real recordings, replayed from the request log, compared with the logs of their coordinators."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from purgatory_udf.answers.broker_readings import (
    KINDS,
    SESSION,
    ComparedGroup,
    ExpiredGroupOperation,
    LoggedGroupEvent,
    Span,
    compare,
    group_events_in,
    group_events_in_logs,
    group_events_of,
    table,
)
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract import read_row
from purgatory_udf.contract.outcome import Transition
from purgatory_udf.rules.coordinator.coordinator_journal import Answer, StateChange
from purgatory_udf.sources.request_log.complete_parser import read_line
from purgatory_udf.sources.request_log.group_conversion import GROUP_APIS
from purgatory_udf.sources.request_log.logged_request import Place, RecordedOutcome, Request
from tests.rules.groups.batches import Batches
from tests.sources.request_log.translate import translate
from tests.support import recorded

# Median difference between the waits of joins. Kafka 3.9's coordinator uses purgatories as the replay does; that of 4.3
# has the same rules and its own timers, and its responses pass through a queue.
JOINS_APART_MS = {"3.9.2": 2.0, "4.3.1": 3.0}
# The recordings in this repository: the minimum number of compared requests, and the events that the coordinators of
# both versions logged. A member stops sending within its session (gB, gE, gF), before it rejoins (gC), or before it
# syncs (gD).
IN_THE_TREE = ("W3-groups", "W3-groups-k39")
ANSWERED, JOINED = 1_400, 40
LOGGED = {
    "gA": {"rebalance": 6, "generation": 6},
    "gB": {"rebalance": 6, "generation": 6, "session": 2},
    "gC": {"rebalance": 5, "generation": 5, "join": 1},
    "gD": {"rebalance": 5, "generation": 5, "sync": 1},
    "gE": {"rebalance": 2, "generation": 2, "session": 1},
    "gF": {"rebalance": 4, "generation": 4, "session": 2},
    "gG": {"rebalance": 5, "generation": 5},
}
# A JVM is slow shortly after its start.
WORST_MS = 50.0
SESSION_MS = 6.0
MOST_APART_MS = 2.0


def _recordings() -> dict[str, Path]:
    """Return the recordings of groups, all without a change of coordinator."""
    return {name: path for name, path in recorded.find_all("traces").items() if "groups" in name and path.is_dir()}


@dataclass(frozen=True)
class Replayed:
    name: str
    kafka: str
    groups: list[ComparedGroup]
    answers: dict[int, Answer]
    recorded: dict[int, RecordedOutcome]


@pytest.fixture(scope="module", params=_recordings())
def replayed(request: pytest.FixtureRequest) -> Replayed:
    """A recording, replayed up to its last request."""
    folder = _recordings()[request.param]
    meta = json.loads("".join(recorded.lines(folder / "meta.json")))
    brokers = [int(name.removeprefix("request-")) for name in meta["lines"] if name.startswith("request-")]
    requests = {broker: recorded.lines(folder / f"request-{broker}.log") for broker in brokers}
    translation = translate(asked for broker, lines in requests.items() for asked in _requests(lines, broker))
    batches = Batches(Config())
    batches.take([read_row(event) for event in translation.events])
    histories = list(batches.records.values())
    transitions = [entry.transition for group in histories for entry in group.journal if isinstance(entry, StateChange)]
    ends = [
        ExpiredGroupOperation(outcome.broker, outcome.kind, outcome.key or "", outcome.ended_us)
        for group in histories
        for outcome in group.outcomes
        if outcome.expired
    ]
    logged = group_events_in_logs([str(recorded.existing_path(folder / f"server-{broker}.log")) for broker in brokers])
    span = Span(translation.events[0]["time_us"], translation.events[-1]["time_us"])
    groups = compare(logged, group_events_of(transitions, ends), dict.fromkeys(brokers, span))
    return Replayed(
        request.param,
        meta["kafka"],
        groups,
        {answer.seq: answer for group in histories for answer in group.answers},
        translation.recorded,
    )


def _requests(lines: Iterable[str], broker: int) -> list[Request]:
    read = [read_line(line, Place(broker, number)) for number, line in enumerate(lines, start=1)]
    return [request for request in read if isinstance(request, Request) and request.api in GROUP_APIS]


def test_replayed_group_events_match_log(replayed: Replayed) -> None:
    logged = {group.group: dict(group.logged) for group in replayed.groups}
    assert logged if replayed.name not in IN_THE_TREE else logged == LOGGED
    assert {group.group: dict(group.replayed) for group in replayed.groups} == logged
    assert [group.group for group in replayed.groups if not group.agrees] == []


def test_group_events_have_logged_times(replayed: Replayed) -> None:
    differences = {kind: [abs(ms) for group in replayed.groups for ms in group.differences_ms[kind]] for kind in KINDS}
    assert max(differences[SESSION], default=0) <= SESSION_MS
    everything = [ms for of_kind in differences.values() for ms in of_kind]
    assert median(everything) <= MOST_APART_MS and max(everything) <= WORST_MS, (median(everything), max(everything))


def test_responses_match_recording(replayed: Replayed) -> None:
    answered = {
        seq: (replayed.answers[seq].error, replayed.answers[seq].generation if record.generation is not None else None)
        for seq, record in replayed.recorded.items()
    }
    assert answered == {seq: (record.error, record.generation) for seq, record in replayed.recorded.items()}
    assert len(answered) > (ANSWERED if replayed.name in IN_THE_TREE else 0)


def test_waits_of_joins_match_recording(replayed: Replayed) -> None:
    """The median is compared, because the first responses of a new JVM are slow."""
    differences = [
        abs(replayed.answers[seq].wait_ms - record.remote_ms)
        for seq, record in replayed.recorded.items()
        if record.kind == "join_group" and record.remote_ms and replayed.answers[seq].wait_ms
    ]
    assert len(differences) > (JOINED if replayed.name in IN_THE_TREE else 0)
    assert median(differences) <= JOINS_APART_MS[replayed.kafka]


# -- log lines and their comparison ------------------------------------------------------------------------------------

LINES = """\
[2026-11-21 03:17:00,000] INFO [GroupCoordinator 2]: Preparing to rebalance group g h in state PreparingRebalance with \
old generation 0 (__consumer_offsets-0) (reason: Adding new member m) (kafka.coordinator.group.GroupCoordinator)
[2026-11-21 03:17:03,000] INFO [GroupCoordinator 2]: Stabilized group g h generation 1 (__consumer_offsets-0) with 3 \
members (kafka.coordinator.group.GroupCoordinator)
[2026-11-21 03:17:04,000] INFO [GroupCoordinator id=2 topic=__consumer_offsets partition=0] Preparing to rebalance \
group g h in state PreparingRebalance with old generation 1 (reason: Removing [n] on pending sync request expiration).
[2026-11-21 03:17:05,000] INFO [GroupCoordinator 2]: Member m in group g h has failed, removing it from the group
[2026-11-21 03:17:06,000] INFO [GroupCoordinator 2]: Pending member p in group g h has been removed after session \
timeout expiration.
[2026-11-21 03:17:07,000] INFO [GroupCoordinator 2]: Group g h removed dynamic members who haven't joined: Set(m)
[2026-11-21 03:17:08,000] INFO [GroupCoordinator 2]: Group g h with generation 2 is now empty (__consumer_offsets-0)
[2026-11-21 03:17:09,000] INFO [GroupMetadataManager brokerId=2] Group g h with generation 2 is now empty
[GroupCoordinator 2]: Group g h with generation 3 is now empty, at no time
"""
BEGIN_US = 1_795_231_020_000_000


def test_lines_of_both_coordinators_are_read() -> None:
    assert [
        event._replace(at_us=(event.at_us - BEGIN_US) // 1_000_000) for event in group_events_in(LINES.splitlines())
    ] == [
        LoggedGroupEvent(2, "g h", "rebalance", "0", 0),
        LoggedGroupEvent(2, "g h", "generation", "1", 3),
        LoggedGroupEvent(2, "g h", "rebalance", "1", 4),
        LoggedGroupEvent(2, "g h", "sync", "", 4),
        LoggedGroupEvent(2, "g h", "session", "m", 5),
        LoggedGroupEvent(2, "g h", "session", "p", 6),
        LoggedGroupEvent(2, "g h", "join", "", 7),
        LoggedGroupEvent(2, "g h", "generation", "2", 8),
    ]


def test_log_without_coordinators_is_user_error(tmp_path: object) -> None:
    path = f"{tmp_path}/server.log"
    with open(path, "w", encoding="utf-8") as file:
        file.write("[2026-11-21 03:17:00,000] INFO started (kafka.server.KafkaServer)\n")
    with pytest.raises(UserError, match=r"server\.log: no line of a group coordinator found"):
        group_events_in_logs([path])


def test_coordinator_without_groups_has_no_events(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("[2026-11-21 03:17:00,000] INFO [GroupCoordinator id=1] Starting up. (kafka.server.BrokerServer)\n")
    assert group_events_in_logs([str(path)]) == []


PREPARING, COMPLETING, EMPTY = "PreparingRebalance", "CompletingRebalance", "Empty"


def _into(at: int, to_state: str, generation: int, reason: str, *members: str) -> Transition:
    from_state = "Stable" if to_state == PREPARING else PREPARING
    return Transition("g", 1, at, from_state, to_state, reason, generation, members)


def test_expired_join_counts_if_members_are_removed() -> None:
    """A static member that did not rejoin stays in the group, and the coordinator logs nothing."""
    rounds = [
        _into(1, PREPARING, 4, "m joined", "m", "n", "static"),
        _into(5, COMPLETING, 5, "static did not rejoin", "m", "n", "static"),
        _into(6, PREPARING, 5, "n left", "m", "static"),
        _into(9, COMPLETING, 6, "m, static did not rejoin", "static"),
        _into(10, PREPARING, 6, "m joined", "m", "static"),
        _into(14, EMPTY, 7, "no members left"),
    ]
    ends = [ExpiredGroupOperation(1, "join", "g", at) for at in (5, 9, 14)] + [
        ExpiredGroupOperation(1, "heartbeat", "g-m", 12)
    ]
    assert [event for event in group_events_of(rounds, ends) if event.kind in ("join", SESSION)] == [
        LoggedGroupEvent(1, "g", "join", "", 9),
        LoggedGroupEvent(1, "g", "join", "", 14),
        LoggedGroupEvent(1, "g", "session", "m", 12),
    ]


def test_table_has_counts_and_time_differences() -> None:
    replayed = [LoggedGroupEvent(1, "g", "generation", "1", 2_000), LoggedGroupEvent(1, "g", "generation", "2", 9_000)]
    logged = [
        LoggedGroupEvent(1, "g", "generation", "0", 1_000),
        LoggedGroupEvent(1, "g", "generation", "1", 3_500),
        LoggedGroupEvent(1, "g", "generation", "2", 9_700),
        LoggedGroupEvent(1, "g", "generation", "3", 9_800),
        LoggedGroupEvent(1, "h", "session", "m", 5_000),
    ]
    g, h = compare(logged, replayed, {1: Span(2_000, 9_000)})
    assert (g.agrees, g.differences_ms["generation"]) == (True, [1.5, 0.7])
    assert (h.agrees, dict(h.logged), dict(h.replayed)) == (False, {"session": 1}, {})
    assert list(table([g, h]).rows) == [
        ("g", "1", "0 / 0", "2 / 2", "0 / 0", "0 / 0", "0 / 0", 2, 1.1, 1.5),
        ("h", "1", "0 / 0", "0 / 0", "1 / 0", "0 / 0", "0 / 0", 0, None, None),
    ]
