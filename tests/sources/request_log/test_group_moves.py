"""Groups that move with their partition of `__consumer_offsets`, in the import and in a recorded rolling restart."""

from __future__ import annotations

from collections import Counter

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.coordinator.group_requests import GROUP_EVENTS
from purgatory_udf.rules.reference.reference_replay import Replay, replay
from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.cluster_facts import GroupHistory, leaving_members
from purgatory_udf.sources.request_log.fact_kinds import CoordinatorAnswer
from purgatory_udf.sources.request_log.group_conversion import coordinator_answers
from purgatory_udf.sources.request_log.partition_status import LeadershipState
from purgatory_udf.sources.request_log.partition_timeline import coordinator_moves
from tests.sources.request_log import recordings
from tests.sources.request_log.log_lines import START_US, log_line, message, parse, us
from tests.sources.request_log.translate import Translation, translate

pytestmark = pytest.mark.long

RECORDING = "W7-rolling-k39"


def _joined(at: float, member: str, generation: int, **fields: object) -> str:
    request = {"groupId": "g", "sessionTimeoutMs": 6000, "rebalanceTimeoutMs": 9000, "memberId": member, **fields}
    response = {"errorCode": 0, "generationId": generation, "memberId": member, "leader": "a"}
    return log_line(at, message("JOIN_GROUP", {**request, "protocols": [{"name": "range"}]}, response, client="c"))


def _synced(at: float, member: str, generation: int, error: int = 0) -> str:
    request = {"groupId": "g", "memberId": member, "generationId": generation, "assignments": [{}]}
    return log_line(at, message("SYNC_GROUP", request, {"errorCode": error}))


def _left(at: float, *members: str) -> str:
    each = [{"memberId": member} for member in members]
    response = {"errorCode": 0, "members": [{**member, "errorCode": 0} for member in each]}
    return log_line(at, message("LEAVE_GROUP", {"groupId": "g", "members": each}, response, version=4))


def test_members_are_those_of_the_assigned_generation() -> None:
    history = _history(_synced(500, "a", -1), _synced(600, "a", 7), _left(700, "a"))
    assert history.stored == {}, "no join precedes"
    history = _history(_joined(1000, "a", 1), _synced(1100, "a", 2), _left(1200, "b"), _left(1300, "a"))
    assert [(each.generation, each.at_us - START_US) for each in history.stored["g"]] == [(2, 1_299_000)]


@pytest.mark.parametrize(
    ("api", "error", "remote", "classic", "answers"),
    [
        ("JOIN_GROUP", 0, 0, True, [(9, 0)]),
        # The group moved while the member waited.
        ("JOIN_GROUP", 16, 50, True, [(9, 0), (60, 16)]),
        ("JOIN_GROUP", 16, 0, True, [(9, 16)]),
        ("SYNC_GROUP", 16, 50, False, [(9, 16)]),
        ("SYNC_GROUP", 27, 50, True, [(9, 0)]),
        ("JOIN_GROUP", 14, 50, True, [(9, 14)]),
        ("JOIN_GROUP", 15, 0, True, []),
        ("HEARTBEAT", 16, 50, True, [(9, 16)]),
    ],
)
def test_response_shows_coordinator(
    api: str, error: int, remote: float, classic: bool, answers: list[tuple[float, int]]
) -> None:
    (request,) = parse([log_line(10 + remote, message(api, {"groupId": "g"}, {"errorCode": error}, remote=remote))])
    assert list(coordinator_answers(request, classic)) == [CoordinatorAnswer(us(at), code) for at, code in answers]


def _history(*lines: str) -> GroupHistory:
    history = GroupHistory()
    for request in parse(lines):
        history.read(request)
    return history


def test_stored_group_is_last_assigned_generation() -> None:
    history = _history(
        _joined(1000, "a", 1),
        _joined(1000, "b", 1, groupInstanceId="i"),
        _synced(1100, "a", 1),
        _joined(2000, "a", 2),
        _synced(2100, "a", 2, error=27),
    )
    stored = history.at("g", us(3000))
    assert stored is not None and (stored.generation, stored.leader, stored.at_us - START_US) == (1, "a", 1_100_000)
    common = {"client_id": "c", "session_timeout_ms": 6000, "rebalance_timeout_ms": 9000, "protocols": ["range"]}
    assert stored.members == [
        {**common, "member_id": "a"},
        {**common, "member_id": "b", "group_instance_id": "i"},
    ]
    assert history.at("g", us(1000)) is None
    assert GroupHistory.resumed(history.snapshot()) == history


def test_empty_group_is_stored_in_next_generation() -> None:
    history = _history(_joined(1000, "a", 4), _joined(1000, "b", 4), _synced(1100, "a", 4), _left(2000, "a", "b"))
    stored = history.at("g", us(3000))
    assert stored is not None and (stored.generation, stored.leader, stored.members) == (5, None, [])


def test_restarted_static_member_is_stored_at_once() -> None:
    """updateStaticMemberAndRebalance: a stable group stores the new id, and it leads if the former id did."""
    history = _history(
        _joined(1000, "a", 1, groupInstanceId="i"),
        _joined(1000, "b", 1),
        _synced(1100, "a", 1),
        _joined(2000, "c", 1, groupInstanceId="i"),
    )
    stored = history.at("g", us(3000))
    assert stored is not None and (stored.generation, stored.leader) == (1, "c")
    assert [member["member_id"] for member in stored.members] == ["c", "b"]


def test_members_without_error_leave() -> None:
    both = [{"memberId": "a"}, {"memberId": "b"}]
    assert list(leaving_members({"members": both}, {"members": [{**both[0], "errorCode": 25}, both[1]]})) == ["b"]
    assert list(leaving_members({"members": both}, {})) == ["a", "b"]
    assert list(leaving_members({"memberId": "c"}, {})) == ["c"]


@pytest.fixture(scope="module")
def rolling() -> Translation:
    """Brokers 1 and 3 restart; their groups move to other coordinators and back."""
    return translate(recordings.log(RECORDING), recordings.given(RECORDING))


@pytest.fixture(scope="module")
def replayed(rolling: Translation) -> Replay:
    return replay(rolling.events, Config())


def test_groups_unload_and_load_on_moves(rolling: Translation) -> None:
    moves = [event for event in rolling.events if event["type"].startswith("group_")]
    ends_us = max(event["time_us"] for event in rolling.events)
    # At the end of the recording the cluster is shut down, and all groups are unloaded.
    moved = [event for event in moves if event["time_us"] < ends_us - 10_000_000]
    assert Counter((event["type"], event["group"], event["broker"]) for event in moved) == {
        **{("group_loaded", group, 2): 2 for group in ("g2", "g6")},
        **{("group_unloaded", group, 1): 1 for group in ("g2", "g6")},
        **{("group_loaded", group, 1): 2 for group in ("g4", "g5")},
        **{("group_unloaded", group, 3): 1 for group in ("g4", "g5")},
        # The brokers stop after they have handed over their leadership.
        **{("group_stopped", group, 1): 1 for group in ("g2", "g6")},
        **{("group_stopped", group, 3): 1 for group in ("g4", "g5")},
    }


def test_broker_stop_cancels_old_sessions(rolling: Translation, replayed: Replay) -> None:
    """Sessions last 10 s, but the broker stops within 2 s after it has unloaded the group."""
    stopped = {(event["broker"], event["time_us"]) for event in rolling.events if event["type"] == "group_stopped"}
    cancelled = [outcome for outcome in replayed.outcomes if outcome.cancelled and outcome.kind == "heartbeat"]
    assert Counter(outcome.broker for outcome in cancelled) == {1: 4, 3: 4}
    assert {(outcome.broker, outcome.ended_us) for outcome in cancelled} <= stopped


GROUP_REQUESTS = {"offset_commit": 468, "heartbeat": 612, "join_group": 24, "sync_group": 12, "leave_group": 12}


def _assert_responses_equal_recorded_ones(translation: Translation, replayed: Replay) -> None:
    answers = {answer.seq: answer.error for answer in replayed.groups.answers}
    requests = {seq: record for seq, record in translation.recorded.items() if record.kind in GROUP_REQUESTS}
    assert Counter(record.kind for record in requests.values()) == GROUP_REQUESTS
    assert {
        seq: (record.kind, record.error) for seq, record in requests.items() if answers.get(seq) != record.error
    } == {}


def test_group_responses_equal_recorded_ones(rolling: Translation, replayed: Replay) -> None:
    _assert_responses_equal_recorded_ones(rolling, replayed)


@pytest.mark.nightly
def test_moves_need_no_metadata_log() -> None:
    """Without --isr, a broker loads a group at its first answer, as followers may find their new leader later."""
    translation = translate(recordings.log(RECORDING), recordings.names(RECORDING))
    of_groups = [event for event in translation.events if event["type"] in GROUP_EVENTS]
    _assert_responses_equal_recorded_ones(translation, replay(of_groups, Config()))


LEADS, FOLLOWS, STOPS = ({"change": change} for change in ("leader", "not_leader", "stopped"))
SERVED, LOADING, REFUSED = errors.NONE, errors.COORDINATOR_LOAD_IN_PROGRESS, errors.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("leadership", "answers", "moves"),
    [
        pytest.param([(50, LEADS)], [(60, LOADING), (70, LOADING), (90, SERVED)], [(71, "loads")], id="slow load"),
        pytest.param([(50, LEADS)], [(40, SERVED)], [(39, "loads")], id="late leadership"),
        pytest.param([], [(40, SERVED), (60, REFUSED), (80, SERVED)], [(39, "loads"), (59, "unloads"), (79, "loads")]),
        pytest.param([(10, LEADS), (50, FOLLOWS)], [(60, SERVED), (70, REFUSED)], [(10, "loads"), (61, "unloads")]),
        pytest.param([(10, LEADS), (50, FOLLOWS)], [(20, SERVED), (40, REFUSED)], [(10, "loads"), (39, "unloads")]),
        pytest.param([(10, LEADS), (50, FOLLOWS)], [(20, REFUSED), (60, REFUSED)], [(21, "loads"), (50, "unloads")]),
        pytest.param(
            [(10, LEADS), (50, FOLLOWS), (60, STOPS), (90, LEADS)],
            [(95, SERVED)],
            [(10, "loads"), (50, "unloads"), (60, "stops"), (90, "loads")],
            id="restart",
        ),
        pytest.param([(10, FOLLOWS), (60, STOPS)], [], [], id="never a coordinator"),
    ],
)
def test_moves_follow_answers_and_leadership(
    leadership: list[tuple[int, dict[str, str]]], answers: list[tuple[int, int]], moves: list[tuple[int, str]]
) -> None:
    states = [LeadershipState(at_us, change) for at_us, change in leadership]
    assert list(coordinator_moves(states, [CoordinatorAnswer(*answer) for answer in answers])) == moves


def test_rolling_restart_operations_end_as_recorded(rolling: Translation, replayed: Replay) -> None:
    ended = {outcome.operation_id: outcome for outcome in replayed.outcomes}
    counts: Counter[tuple[str, bool]] = Counter()
    for seq, record in rolling.recorded.items():
        if record.kind in ("consumer fetch", "follower fetch", "produce acks=-1"):
            end = ended[seq]
            replayed_as = "expired" if end.expired else "completed" if end.watched else "at_once"
            counts[record.kind, record.outcome == replayed_as] += 1
    for kind in ("consumer fetch", "follower fetch", "produce acks=-1"):
        agreement = 100 * counts[kind, True] / (counts[kind, True] + counts[kind, False])
        assert agreement >= 99.4, (kind, counts)
