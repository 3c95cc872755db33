"""A log reveals settings of the brokers; replays use the certain ones, and `fidelity` names wrong ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from jobs.fidelity import main as fidelity
from jobs.ingest import main as ingest
from jobs.replay import main as replay
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.backend.dataset import LocalDataset
from purgatory_udf.common.configuration import load_config
from purgatory_udf.contract.tables import TABLES
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.sources.follow_topic import LogSteps
from purgatory_udf.sources.kafka_topic import MESSAGES, KafkaTopic, Messages
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.cluster_metadata import GRANTED, REPORTED, PartitionChange
from purgatory_udf.sources.request_log.importing.broker_pauses import BrokerPause
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.sources.request_log.importing.import_rows import (
    REQUESTS,
    produce_batch,
    request_batch,
    request_row,
)
from purgatory_udf.sources.request_log.importing.settings_evidence import replica_lag_shown
from purgatory_udf.sources.request_log.inferred_settings import (
    _end_of_initial_ms,
    evidence_in,
    heartbeat_of,
    reported,
    roundest,
    settings_of_evidence,
    settings_of_joins,
    timeout_shown,
)
from purgatory_udf.sources.request_log.kafka_protocol import ProduceColumns
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import (
    RecordedBrokers,
    RecordedSetting,
    Run,
    contradictions,
    recorded_brokers,
    with_kept,
    with_recorded,
)
from purgatory_udf.streaming.run_resumption import semantic_settings
from tests.sources.request_log.followed_log import FollowedLog
from tests.sources.request_log.log_lines import T, log_line, message, parse, produce_line, us

DELAY, SESSION = "group.initial.rebalance.delay.ms", "group.consumer.session.timeout.ms"


def join(
    at: float, until: float, generation: int = 1, *, member: str = "m", error: int = 0, session: int = 10_000
) -> str:
    """Return the line of a join from `at` to `until`."""
    request = {
        "groupId": "g",
        "memberId": "",
        "sessionTimeoutMs": session,
        "rebalanceTimeoutMs": 60_000,
        "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": ""}],
    }
    answer = {"errorCode": error, "generationId": generation, "memberId": member, "leader": "m", "members": []}
    return log_line(until, message("JOIN_GROUP", request, answer, version=3, remote=until - at - 1))


def member_line(api: str, at: float, error: int = 0, until: float | None = None, **fields: Any) -> str:
    """Return the line of another request of the member."""
    request = {"groupId": "g", "memberId": "m", "generationId": 1, **fields}
    remote = 0 if until is None else until - at - 1
    end = at + 1 if until is None else until
    return log_line(end, message(api, request, {"errorCode": error, "assignment": ""}, version=4, remote=remote))


def shown(lines: Iterable[str], is_new: bool = False) -> list[str]:
    requests = sorted(parse(lines), key=lambda request: request.start_us)
    return [str(setting) for setting in settings_of_joins(requests, lambda broker: is_new)]


@pytest.mark.parametrize(
    ("joins", "delay"),
    [
        ([(0, 2_001)], 2_000),
        ([(0, 3)], 0),
        # The second member extends the wait.
        ([(0, 4_001), (500, 4_001)], 2_000),
        # The second member joins at the last moment.
        ([(0, 4_000), (2_000, 4_000)], 2_000),
        # A third member may have extended a wait of 2 s twice, or one of 3 s once.
        ([(0, 6_002), (500, 6_002), (2_500, 6_002)], None),
        # The rebalance timeout of 60 s may have ended a wait of 60 s, or the second wait of 30 s.
        ([(0, 60_000), (500, 60_000)], None),
    ],
)
def test_first_joins_show_initial_delay(joins: list[tuple[float, float]], delay: int | None) -> None:
    lines = [join(at, until, member=f"m{number}") for number, (at, until) in enumerate(joins)]
    assert shown(lines) == ([] if delay is None else [f"{DELAY}={delay}, from 1 first joins of empty groups"])


def test_only_groups_known_to_be_empty_count() -> None:
    """The second generation waits for members; the fourth starts after all have left."""
    lines = [join(0, 901, 2), member_line("LEAVE_GROUP", 1_000), join(2_000, 3_251, 4)]
    assert shown(lines) == [f"{DELAY}=1250 (not certain: 1,250 to 1,251), from 1 first joins of empty groups"]


def test_refused_joins_show_session_limits() -> None:
    lines = [join(0, 1, session=2_000, error=26), join(10, 11, 3, session=4_000), join(20, 21, 3, session=9_000_000)]
    assert shown([*lines, join(30, 31, session=10_000_000, error=26)]) == [
        "group.min.session.timeout.ms=4000, from 2 joins",
        "group.max.session.timeout.ms=9000000, from 2 joins",
    ]


def test_accepted_joins_bound_session_limits() -> None:
    lines = [join(0, 1, session=2_000), join(10, 11, 3, session=4_000), join(20, 21, 3, session=2_000_000)]
    settings = settings_of_joins(parse(lines), lambda broker: False)
    assert [each for each in settings if "session" in each.name] == [
        RecordedSetting("group.min.session.timeout.ms", 0, 2_000, 2_000, True, 2),
        RecordedSetting("group.max.session.timeout.ms", 2_000_000, 2**31 - 1, 2_000_000, True, 1),
    ]


def heartbeat(at: float, member: str, sent: int, epoch: int, error: int = 0) -> str:
    request = {
        "groupId": "g",
        "memberId": member,
        "memberEpoch": sent,
        "subscribedTopicNames": [] if not sent else None,
    }
    answer = {"errorCode": error, "memberId": member, "memberEpoch": epoch, "heartbeatIntervalMs": 1_000}
    return log_line(at, message("CONSUMER_GROUP_HEARTBEAT", request, answer, version=1))


def consumer_session(lines: Iterable[str], resized_us: list[int] | None = None) -> RecordedSetting | None:
    rows = [request_row(request, None) for request in parse(lines)]
    requests = LocalBackend().dataset_of(pa.Table.from_batches([request_batch(rows, {}, REQUESTS)]))
    evidence = evidence_in(requests).collect().to_pylist()
    found = settings_of_evidence(evidence, (), resized_us or [])
    return next((setting for setting in found if setting.name == SESSION), None)


def silent_member(sent_epoch_of_silent: int = 2, join_at: float | None = None) -> list[str]:
    """Return heartbeats every second of member a; b, in the same epoch, is silent since 3.5 s and gone at 11 s."""
    lines = [heartbeat(0, "a", 0, 1), heartbeat(500, "b", 0, 2)]
    lines += [heartbeat(1_000 * at, "a", 1 if at == 1 else 2, 2) for at in range(1, 11)]
    lines += [heartbeat(500 + 1_000 * at, "b", 2, sent_epoch_of_silent) for at in range(1, 4)]
    lines += [heartbeat(join_at, "c", 0, 2)] if join_at is not None else []
    return [*lines, heartbeat(11_000, "a", 2, 3)]


def test_silent_member_shows_consumer_session() -> None:
    assert consumer_session(silent_member()) == RecordedSetting(SESSION, 6_500, 7_500, 7_000, True, 1)


def test_huge_heartbeat_interval_shows_nothing() -> None:
    """A table cannot store it exactly."""
    huge = heartbeat(400, "c", 0, 2).replace('"heartbeatIntervalMs": 1000', f'"heartbeatIntervalMs": {10**18}')
    assert consumer_session([huge, *silent_member()]) == consumer_session(silent_member())


def test_other_causes_of_rebalances_show_nothing() -> None:
    """A member in an older epoch may have kept partitions too long; a join or a new topic starts a rebalance, too."""
    resized_us = parse([heartbeat(8_000, "a", 2, 2)])[0].start_us
    assert consumer_session(silent_member(sent_epoch_of_silent=1)) is None
    assert consumer_session(silent_member(join_at=10_500)) is None
    assert consumer_session(silent_member(), [resized_us]) is None


def replica_lag(
    *,
    removed_at: float = 11_600,
    append_at: float | None = 900,
    pauses: list[BrokerPause] | None = None,
    fetched: int = 5,
    other_removed_at: float | None = None,
    as_columns: bool = False,
) -> list[str]:
    """Return the setting, if the leader (broker 1) removed follower 2, which fetched every 100 ms until 500 ms.

    With `other_removed_at`, it also removed follower 3 of partition 1, which fetched at the same times. The produce is
    read as JSON or as columns.
    """
    fetch = {"replicaState": {"replicaId": 2}, "topics": []}
    fetches = [message("FETCH", fetch, {}, client="broker-2-fetcher-0") for _ in range(fetched)]
    lines = [log_line(100 * (number + 1), line) for number, line in enumerate(fetches)]
    lines += [line.replace("broker-2-fetcher", "broker-3-fetcher") for line in lines]
    lines += [produce_line(append_at, 0)] if append_at is not None else []
    *of_fetches, produce = [request_row(request, None) for request in parse(lines)]
    batches = [request_batch([*of_fetches, *([] if as_columns else [produce])], {}, REQUESTS)]
    if as_columns:
        produced = np.array([[0, 0, 100, 0, 7]])
        body = ProduceColumns([T], [None], np.array([[-1, 30_000, 1]]), produced, np.array([0, 1]))
        columns = {name: [value] for name, value in produce._asdict().items() if name not in ("api", "body", "answer")}
        batches.append(produce_batch(columns, body, {}, REQUESTS))
    requests = LocalBackend().dataset_of(pa.Table.from_batches(batches))
    before = PartitionChange(us(0), "t", 0, REPORTED, 1, 0, (1, 2), (1, 2))
    granted = PartitionChange(us(removed_at + 5), "t", 0, GRANTED, 1, 0, None, (1,), asked_us=us(removed_at))
    changes = {("t", 0): [before, granted]}
    if other_removed_at is not None:
        after = us(other_removed_at + 5)
        changes["t", 1] = [
            PartitionChange(us(0), "t", 1, REPORTED, 1, 0, (1, 3), (1, 3)),
            PartitionChange(after, "t", 1, GRANTED, 1, 0, None, (1,), asked_us=us(other_removed_at)),
        ]
    context = Context(names={T: "t"}, changes=changes)
    return list(map(str, replica_lag_shown(requests, context, pauses or [])))


def test_removed_follower_shows_replica_lag() -> None:
    """A follower lacks records, and is removed, only after an append."""
    name, removals = "replica.lag.time.max.ms", "from 1 removals of silent followers from in-sync sets"
    assert replica_lag() == [f"{name}=10000, {removals}"]
    assert replica_lag(append_at=11_000) == [f"{name}=10000 (not certain: 1,002 to 11,201), {removals}"]
    assert replica_lag(removed_at=50_500) == [f"{name}=40000 (not certain: 33,134 to 50,101), {removals}"]
    assert replica_lag(append_at=11_000, as_columns=True) == replica_lag(append_at=11_000)
    assert replica_lag(append_at=None) == []
    # The first removal shows at least 10 s, the other one at most 10 s.
    assert replica_lag(removed_at=15_799, other_removed_at=10_399) == [
        f"{name}=10000, {removals}".replace("1 r", "2 r")
    ]
    assert replica_lag(removed_at=15_799, other_removed_at=10_398) == []
    assert replica_lag(fetched=1) == replica_lag(fetched=0) == []


def test_paused_leader_shows_no_replica_lag() -> None:
    assert replica_lag(pauses=[BrokerPause(1, us(1_000), us(11_500))]) == []


def lines_with_settings() -> list[str]:
    """Return a join of 2 s, heartbeats of a consumer group with a silent member, and a lookup that expired at 1.2 s."""
    found = {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "errorCode": 7}]}]}
    asked = {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "timestamp": 5}]}]}
    lookup = log_line(3_201, message("LIST_OFFSETS", asked, found, version=8, remote=1_200))
    return [join(0, 2_001), lookup, *silent_member()]


def test_followed_log_shows_same_settings() -> None:
    """Steps of 4 s; later lines show that the member stays silent."""
    log = sorted(parse(lines_with_settings()), key=lambda request: request.answered_us)
    followed, end = FollowedLog(3_000_000), parse([heartbeat(15_000, "a", 3, 3), heartbeat(16_000, "a", 3, 3)])
    numbers = []
    for second in range(0, 12, 4):
        followed.step([each for each in log if us(1_000 * second) <= each.answered_us < us(1_000 * second + 4_000)])
        numbers.append(len(followed.carried.settings.settings()))
    followed.step(end)
    assert numbers[0] < numbers[-1] < 4
    assert {(each.name, each.value, each.certain) for each in followed.carried.settings.settings()} == {
        (DELAY, 2_000, True),
        (SESSION, 7_000, True),
        ("remote.list.offsets.request.timeout.ms", 1_200, True),
        ("group.consumer.heartbeat.interval.ms", 1_000, True),
    }


@pytest.mark.parametrize(("last_ms", "shows"), [(9_000, False), (8_999, True)])
def test_member_is_silent_after_two_intervals(last_ms: int, shows: bool) -> None:
    """Member b sends a heartbeat every second; at 11 s the group has a new epoch."""
    lines = [heartbeat(0, "a", 0, 1), heartbeat(500, "b", 0, 2)]
    lines += [heartbeat(1_000 * at, "a", 1 if at == 1 else 2, 2) for at in range(1, 11)]
    lines += [heartbeat(last_ms - 1_000 * at, "b", 2, 2) for at in range(7, -1, -1)]
    log = sorted(parse([*lines, heartbeat(11_000, "a", 2, 3)]), key=lambda request: request.answered_us)
    followed = FollowedLog(3_000_000)
    followed.step(log)
    followed.step(parse([heartbeat(15_000, "a", 3, 3)]))
    assert any(each.name == SESSION for each in followed.carried.settings.settings()) is shows


def test_followed_import_records_settings(tmp_path: Path) -> None:
    layout, backend = Layout(str(tmp_path)), LocalBackend()
    for name in ("events", "recorded", "rejected_events"):
        backend.delta(layout.table(name)).create(layout.table(name), TABLES[name])
    options = RequestLogOptions(["lines"], str(tmp_path), hold_ms=1_000)
    topic, run = KafkaTopic("localhost:1", "lines", Messages.REQUEST_LOG), Run("followed", "ingest", {}, {})
    steps = LogSteps(backend, layout, run, topic, options, f"{tmp_path}/held")
    for step, line in enumerate((join(0, 2_001), heartbeat(9_000, "a", 0, 1))):
        rows = {"partition": [0], "offset": [step], "value": [line]}
        steps.run(backend, LocalDataset.of(pa.table(rows, MESSAGES)), step)
    (delay,) = recorded_brokers(backend, layout.table("events")).settings
    assert str(delay) == f"{DELAY}=2000, from 1 first joins of empty groups"
    assert f"  {delay}" in steps.summary()


def test_resumed_replay_keeps_its_settings() -> None:
    """The log shows 2,000 ms only after the replay has started with the default; a given number counts."""
    started = load_config(settings=["group.initial_rebalance_delay_ms=3000"]).model_dump(mode="json")
    for settings, delay_ms in (([], 3_000), (["group.initial_rebalance_delay_ms=1000"], 1_000)):
        assert with_kept(load_config(settings=settings), started).group.initial_rebalance_delay_ms == delay_ms
    assert semantic_settings(with_kept(load_config(), started)) == semantic_settings(load_config())


@pytest.mark.parametrize(
    ("version", "wait_ms", "reads", "purge_interval", "share"),
    [("3.7", None, "first", 1000, "4.3"), ("4.1.2", 500, "first", 1000, "4.1"), ("4.4", 500, "all", 0, "4.4")],
)
def test_given_kafka_version_selects_older_rules(
    version: str, wait_ms: int | None, reads: str, purge_interval: int, share: str
) -> None:
    config = with_recorded(load_config(), RecordedBrokers(kafka_version=version))
    remote = config.remote_fetch
    assert (remote.max_wait_ms, remote.reads, remote.purge_interval) == (wait_ms, reads, purge_interval)
    assert config.share.version == share
    given = load_config(settings=["remote_fetch.reads=all", "remote_fetch.max_wait_ms=700"])
    remote = with_recorded(given, RecordedBrokers(kafka_version=version)).remote_fetch
    assert (remote.reads, remote.max_wait_ms) == ("all", 700)


def test_value_is_certain_if_round_or_confirmed() -> None:
    assert roundest(6_871, 7_623) == (7_000, True)
    assert roundest(3_100, 9_000) == (5_000, True) and roundest(1_100, 3_900) == (2_000, False)
    assert roundest(7.2, 7.9) is None
    assert roundest(1_234.2, 1_235.6) == (1_235, True) and roundest(1_211, 1_239) == (1_220, False)
    for waits, certain in (([703.0], True), ([737.0], False), ([737.0, 739.0], True), ([703.0, 900.0, 950.0], False)):
        setting = timeout_shown(DELAY, waits)
        assert setting is not None and setting.certain is certain


def test_reported_value_is_certain_if_it_is_the_only_one() -> None:
    assert [reported(DELAY, counted).certain for counted in ({5_000: 3}, {5_000: 3, 3_000: 1})] == [True, False]


def test_first_heartbeat_shows_interval() -> None:
    rows = [request_row(request, None) for request in parse([heartbeat(0, "a", 0, 1)])]
    requests = LocalBackend().dataset_of(pa.Table.from_batches([request_batch(rows, {}, REQUESTS)]))
    (setting,) = settings_of_evidence(evidence_in(requests).collect().to_pylist(), (), [])
    assert (setting.name, setting.value) == ("group.consumer.heartbeat.interval.ms", 1_000)


def test_given_settings_win_and_factors_scale() -> None:
    recorded = [RecordedSetting("remote.fetch.max.wait.ms", 700, 701, 700, True, 9)]
    unset, factor = load_config(), load_config(settings=["remote_fetch.max_wait_ms=x2"])
    given = load_config(settings=["remote_fetch.max_wait_ms=500", "produce.timeout_ms[topic=t]=7"])
    applied = [with_recorded(each, RecordedBrokers(recorded)) for each in (unset, factor, given)]
    assert [each.remote_fetch.max_wait_ms for each in applied] == [700, 1400, 500]
    assert applied[2] == given and applied[2].group._rules == given.what_if
    found = [str(each) for each in contradictions(given.model_dump(), recorded)]
    shown_by = "remote.fetch.max.wait.ms=700, from 9 expired fetches"
    assert found == [f"remote_fetch.max_wait_ms=500 contradicts the recording, which shows {shown_by}"]


def test_replay_uses_recorded_delay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """With the default delay of 3 s, the group would still wait for members at 2.5 s."""
    log, out = tmp_path / "request-1.log", str(tmp_path / "out")
    sync = member_line("SYNC_GROUP", 2_010, until=2_020, assignments=[{"memberId": "m", "assignment": ""}])
    beats = [member_line("HEARTBEAT", at) for at in (2_300, 2_500, 4_000)]
    log.write_text("\n".join([join(0, 2_001), sync, *beats]) + "\n")
    sentence = f"{DELAY}=2000, from 1 first joins of empty groups"
    assert ingest.status(["--from", "request-log", str(log), "--out", out], open_local) == 0
    (counts,) = DeltaTable(f"{out}/runs").to_pyarrow_table().column("counts").to_pylist()
    assert {setting["name"]: setting["value"] for setting in json.loads(counts)["settings"]} == {DELAY: 2_000}
    words = ["--events", f"{out}/events", "--out", out]
    assert replay.status([*words, "--set", "group.initial_rebalance_delay_ms=3000"], open_local) == 0
    assert f"group.initial_rebalance_delay_ms=3000 contradicts the recording, which shows {sentence}" in caplog.messages
    assert fidelity.status(["--out", out], open_local) == 0
    printed = capsys.readouterr().out
    assert printed.count(f"  {sentence}") == 2
    assert ["group.initial_rebalance_delay_ms", "3000", "2000", "1"] in map(str.split, printed.splitlines())
    causes = DeltaTable(f"{out}/fidelity").to_pyarrow_table().column("cause").to_pylist()
    assert set(causes) == {None, "other_setting"}
    assert replay.status([*words, "--overwrite"], open_local) == 0
    configurations = DeltaTable(f"{out}/runs").to_pyarrow_table().sort_by("job").column("configuration").to_pylist()
    assert json.loads(configurations[-1])["group"]["initial_rebalance_delay_ms"] == 2_000


@pytest.mark.parametrize(
    ("joined", "rebalance_ms", "extends", "end"),
    [
        ([], 60_000, True, 3_000),
        ([0], 60_000, True, 3_000),
        ([10], 60_000, False, 3_000),
        ([10], 60_000, True, 6_000),
        ([3_000], 60_000, True, 6_000),
        ([10, 3_500], 60_000, True, 9_000),
        ([10, 3_500], 8_000, True, 8_000),
        ([10], 3_000, True, 3_000),
        ([10], 3_001, True, 3_001),
        ([10], 150, True, 3_000),
    ],
)
def test_joins_extend_first_join_phase(joined: list[float], rebalance_ms: int, extends: bool, end: float) -> None:
    """A delay of 3 s is repeated while members join, until the rebalance timeout."""
    assert _end_of_initial_ms(3_000, joined, rebalance_ms, extends) == end


def test_only_some_heartbeats_may_start_rebalance() -> None:
    rows = [request_row(each, None) for each in parse([heartbeat(5, "a", sent, 2) for sent in (-1, 0, 1, 2)])]
    assert [heartbeat_of(row)[1].changes for row in rows] == [True, True, False, False]
