"""The `runs` table: the input, settings, status and counts of every import, replay and simulation.

The import of a request log also stores the settings of the recorded brokers, which replays of its events use.
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from purgatory_udf import __version__
from purgatory_udf.backend.backend import Session, backend_of
from purgatory_udf.backend.delta_store import Condition, Transaction
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.tables import COMMENTED_TABLES

if TYPE_CHECKING:
    from purgatory_udf.common.configuration import Config

RUNNING, FINISHED = "running", "finished"


@dataclass(frozen=True)
class Run:
    """One run's record; the JSON columns are dictionaries."""

    run_id: str
    job: str
    trace: dict[str, Any]
    configuration: dict[str, Any]
    status: str = RUNNING
    counts: dict[str, Any] = field(default_factory=dict)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    finished_at: datetime | None = None
    wall_seconds: float | None = None

    def finished(self, counts: dict[str, Any]) -> Run:
        """Return a record of the run as finished now, with these counts."""
        now = datetime.now(UTC)
        wall = (now - self.started_at).total_seconds()
        return replace(self, status=FINISHED, counts=counts, finished_at=now, wall_seconds=wall)

    def step(self, table: str, number: int) -> Transaction:
        """Return the transaction id of a step of this run, so that a repeated step is written once.

        Steps of a table have rising numbers: one at or below the last written number is skipped.
        """
        return Transaction(f"{self.run_id}/{self.started_at.isoformat()}/{table}", number)


def load(session: Session, path: str, job: str) -> Run | None:
    """Return the job's latest run recorded in the table at `path`, or None."""
    row = _latest(session, path, job)
    if row is None:
        return None
    return Run(
        row["run_id"],
        row["job"],
        json.loads(row["trace"]),
        json.loads(row["configuration"]),
        row["status"],
        json.loads(row["counts"] or "{}"),
        row["started_at"],
        row["finished_at"],
        row["wall_seconds"],
    )


def ran_without_spark(session: Session, path: str, job: str) -> bool | None:
    """Return whether the job's latest run was executed without Spark; None if there is no run."""
    row = _latest(session, path, job)
    return None if row is None else "spark" not in json.loads(row["versions"])


def save(session: Session, path: str, run: Run) -> None:
    """Write the run's row, replacing its earlier one."""
    backend = backend_of(session)
    versions = {"purgatory_replay": __version__, **backend.versions(), "python": platform.python_version()}
    row = {
        "run_id": run.run_id,
        "job": run.job,
        "status": run.status,
        "trace": json.dumps(run.trace, sort_keys=True),
        "configuration": json.dumps(run.configuration, sort_keys=True),
        "versions": json.dumps(versions, sort_keys=True),
        "counts": json.dumps(run.counts, sort_keys=True),
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "wall_seconds": run.wall_seconds,
    }
    backend.delta(path).overwrite(path, pa.Table.from_pylist([row], COMMENTED_TABLES["runs"]), where=_row_of(run))


def forget(session: Session, path: str, run: Run) -> None:
    """Delete the run's row, because the run's output is about to be replaced."""
    backend_of(session).delta(path).delete(path, _row_of(run))


def events_of(session: Session, out: str, run: Run) -> str:
    """Return the path of the events that the run replayed: the recorded one, or `out/events` if that was moved."""
    backend = backend_of(session)
    named = str(run.trace.get("events") or "")
    in_folder = f"{out.rstrip('/')}/events"
    if not named:
        return in_folder
    moved = not backend.delta(named).is_table(named) and backend.delta(in_folder).is_table(in_folder)
    return in_folder if moved else named


def exists(session: Session, path: str) -> bool:
    """Return whether there is a table of runs at `path`.

    Raises:
        UserError: The table has other columns.
    """
    store = backend_of(session).delta(path)
    if not store.is_table(path):
        return False
    present = store.columns(path)
    missing = [name for name in COMMENTED_TABLES["runs"].names if name not in present]
    if missing:
        raise UserError(
            f"{path}: not a table of runs: it has no column {missing[0]}; restore the table, or choose another --out"
        )
    return True


def _latest(session: Session, path: str, job: str) -> dict[str, Any] | None:
    if not exists(session, path):
        return None
    store = backend_of(session).delta(path)
    rows = store.read(path, where=[Condition("job", "=", job)]).sort_by("started_at").to_pylist()
    return rows[-1] if rows else None


def _row_of(run: Run) -> list[Condition]:
    return [Condition("run_id", "=", run.run_id), Condition("job", "=", run.job)]


log = logging.getLogger(__name__)

INITIAL_DELAY = "group.initial.rebalance.delay.ms"
MIN_SESSION, MAX_SESSION = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
CONSUMER_SESSION = "group.consumer.session.timeout.ms"
CONSUMER_INTERVAL = "group.consumer.heartbeat.interval.ms"
REMOTE_FETCH_WAIT = "remote.fetch.max.wait.ms"
LOOKUP_TIMEOUT = "remote.list.offsets.request.timeout.ms"
COMMIT_TIMEOUT = "offsets.commit.timeout.ms"
FOLLOWER_WAIT, FOLLOWER_BYTES = "replica.fetch.wait.max.ms", "replica.fetch.min.bytes"
REPLICA_LAG = "replica.lag.time.max.ms"

# The requests that show a setting.
_SHOWN_BY = {
    INITIAL_DELAY: "first joins of empty groups",
    MIN_SESSION: "joins",
    MAX_SESSION: "joins",
    CONSUMER_SESSION: "members with expired sessions",
    CONSUMER_INTERVAL: "heartbeats",
    REMOTE_FETCH_WAIT: "expired fetches",
    LOOKUP_TIMEOUT: "expired lookups",
    COMMIT_TIMEOUT: "expired commits",
    FOLLOWER_WAIT: "fetches of followers",
    FOLLOWER_BYTES: "fetches of followers",
    REPLICA_LAG: "removals of silent followers from in-sync sets",
}
# The settings of a replay that the brokers' settings decide. Others are in the requests themselves.
KEYS = {
    INITIAL_DELAY: "group.initial_rebalance_delay_ms",
    MIN_SESSION: "group.min_session_timeout_ms",
    MAX_SESSION: "group.max_session_timeout_ms",
    CONSUMER_SESSION: "group.consumer.default_session_timeout_ms",
    REMOTE_FETCH_WAIT: "remote_fetch.max_wait_ms",
    LOOKUP_TIMEOUT: "list_offsets.request_timeout_ms",
}
# A setting that replaces the value of another one, unless it is null.
_OVERRIDE = {CONSUMER_SESSION: "group.consumer.session_timeout_ms"}


@dataclass(frozen=True)
class RecordedSetting:
    """A setting of the brokers, derived from a request log.

    Attributes:
        name: Kafka's name of the setting.
        low: The lowest value that is compatible with the log.
        high: The highest such value.
        value: The most likely value.
        certain: Whether no other value is likely.
        requests: Number of requests from which it is derived.
    """

    name: str
    low: int
    high: int
    value: int
    certain: bool
    requests: int

    def __str__(self) -> str:
        bounds = "" if self.certain else f" (not certain: {self.low:,} to {self.high:,})"
        return f"{self.name}={self.value}{bounds}, from {self.requests:,} {_SHOWN_BY[self.name]}"

    def allows(self, value: object) -> bool:
        """Return whether the recording is compatible with the value."""
        return value == self.value or (isinstance(value, int) and self.low <= value <= self.high)


@dataclass(frozen=True)
class Contradiction:
    """A setting of a replay that differs from what the recording shows."""

    key: str
    value: Any
    recorded: RecordedSetting

    def __str__(self) -> str:
        return f"{self.key}={self.value} contradicts the recording, which shows {self.recorded}"


@dataclass(frozen=True)
class RecordedBrokers:
    """What the import of a request log stored about the brokers; nothing for events of other sources.

    Attributes:
        settings: The brokers' settings that the log shows.
        kafka_version: The brokers' Kafka version, if the import was given one.
    """

    settings: Sequence[RecordedSetting] = ()
    kafka_version: str | None = None


def recorded_brokers(session: Session, events: str) -> RecordedBrokers:
    """Return what the import that wrote the table `events` stored about the brokers."""
    folder = events.rstrip("/").rpartition("/")[0] or "."
    run = load(session, f"{folder}/runs", "ingest")
    if run is None:
        return RecordedBrokers()
    settings = [RecordedSetting(**setting) for setting in run.counts.get("settings", ())]
    return RecordedBrokers(settings, run.configuration.get("kafka_version"))


# Settings that select the rules of older versions of Kafka: the first version with the newer rule, and the older value.
_OLDER_RULES = (
    ((3, 8), "remote_fetch.max_wait_ms", None),
    ((4, 2), "remote_fetch.reads", "first"),
    ((4, 2), "remote_fetch.purge_interval", 1000),
    ((4, 3), "group.consumer.assignment_interval_ms", 0),
)
# Versions of the rules of share groups.
_SHARE_VERSIONS = ("4.1", "4.2", "4.3", "4.4")


def with_version(config: Config, kafka_version: str | None) -> Config:
    """Return the configuration with the rules of a Kafka version, for settings that it does not set."""
    if kafka_version is None:
        return config
    major, minor = (int(part) for part in kafka_version.split(".")[:2])
    values = config.model_dump(exclude_unset=True)
    chosen = [(key, older) for newer, key, older in _OLDER_RULES if (major, minor) < newer]
    if f"{major}.{minor}" in _SHARE_VERSIONS:
        chosen.append(("share.version", f"{major}.{minor}"))
    for key, value in chosen:
        section, name = _section(values, key)
        section.setdefault(name, value)
    return type(config).model_validate(values)


def with_recorded(config: Config, recording: RecordedBrokers) -> Config:
    """Return the configuration with the version, and each certain setting, of a recording that it does not set.

    A factor such as x0.5 applies to the recorded value.
    """
    from purgatory_udf.contract.overrides import apply_override

    config = with_version(config, recording.kafka_version)
    values = config.model_dump(exclude_unset=True)
    for setting in _used(recording.settings):
        section, name = _section(values, KEYS[setting.name])
        given = section.get(name, setting.value)
        section[name] = apply_override(setting.value, given) if isinstance(given, str) else given
    return type(config).model_validate(values)


def _section(values: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the section of a key such as `group.consumer.interval_ms`, which may be new, and the key's last name."""
    *path, name = key.split(".")
    for part in path:
        values = values.setdefault(part, {})
    return values, name


def with_kept(config: Config, configuration: Mapping[str, Any]) -> Config:
    """Return the configuration with the settings of brokers that a followed replay was started with.

    The log may show other settings later; a replay that resumes keeps the earlier ones, unless `config` has numbers.

    Args:
        config: The configuration of the resumed replay.
        configuration: The recorded configuration of the run.
    """
    values = config.model_dump(exclude_unset=True)
    for key in KEYS.values():
        *path, name = key.split(".")
        section, known = values, configuration
        for part in path:
            section, known = section.setdefault(part, {}), known.get(part) or {}
        if name in known and not isinstance(section.get(name), int):
            section[name] = known[name]
    return type(config).model_validate(values)


def contradictions(config: Mapping[str, Any], settings: Sequence[RecordedSetting]) -> list[Contradiction]:
    """Return the settings of a configuration, given as JSON values, that contradict certain settings of the brokers."""
    found = []
    for setting in _used(settings):
        key, override = KEYS[setting.name], _OVERRIDE.get(setting.name)
        value = _value(config, key)
        if override is not None and _value(config, override) is not None:
            key, value = override, _value(config, override)
        if not setting.allows(value):
            found.append(Contradiction(key, value, setting))
    return found


def _value(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value[part]
    return value


def warn_of_contradictions(config: Config, settings: Sequence[RecordedSetting]) -> None:
    """Log a warning for each setting of the configuration that contradicts the recording."""
    for contradiction in contradictions(config.model_dump(mode="json"), settings):
        log.warning("%s", contradiction)


def _used(settings: Iterable[RecordedSetting]) -> Iterator[RecordedSetting]:
    return (setting for setting in settings if setting.certain and setting.name in KEYS)
