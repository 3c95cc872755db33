"""The settings of a simulation: brokers, topics, clients and incidents, each key with its range and default.

Scenarios are loaded by name or from a file. The first error in a file is reported with its file and key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from purgatory_udf.common.configuration import read_mapping
from purgatory_udf.common.errors import UserError
from purgatory_udf.common.installation import conf_folder
from purgatory_udf.simulation.scenario_sections import Count, Fitted, Incident, Millis, Name, Rate, Seconds, Size


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Delay(_Section):
    """A log-normal latency, given by its median and 75th percentile."""

    median_ms: Annotated[float, Field(gt=0, le=600_000)]
    p75_ms: Annotated[float, Field(gt=0, le=3_600_000)]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.p75_ms < self.median_ms:
            raise ValueError(f"p75_ms is below median_ms ({self.median_ms:g})")
        return self


class ReplicationQuotaSettings(_Section):
    """A limit on the bytes per second that a leader sends to out-of-sync followers, for partitions of some topics."""

    bytes_per_second: Rate
    topics: list[Name]


class Brokers(_Section):
    """The cluster's brokers, with ids 1 to `count`."""

    count: Count = 3
    network: Delay = Delay(median_ms=0.4, p75_ms=0.7)
    # The time a follower takes to append fetched records, which is its replication lag.
    append: Delay = Delay(median_ms=0.5, p75_ms=0.9)
    # With a rate, an append takes this much longer: its bytes divided by the rate.
    append_bytes_per_second: Annotated[float, Field(gt=0, le=1e12)] | None = None
    # The time from a leader's resignation to the election of the next leader.
    election: Delay = Delay(median_ms=8, p75_ms=14)
    failure_detection_ms: Millis = 1500
    replica_lag_time_max_ms: Annotated[int, Field(ge=100, le=2**31 - 1)] = 30_000
    replica_fetch_wait_max_ms: Millis = 500
    replica_fetch_min_bytes: Size = 1
    replication_quota: ReplicationQuotaSettings | None = None
    # The time of a read of remote storage, and the pool of threads that reads (`remote.log.reader.*`).
    remote_read: Delay = Delay(median_ms=80, p75_ms=150)
    remote_reader_threads: Count = 10
    remote_reader_max_pending: Count = 100
    # Thread time per request in microseconds; only request quotas use it.
    handling_us: Annotated[float, Field(gt=0, le=60_000_000)] = 200


class Topic(_Section):
    """A topic that exists from the start."""

    name: Name
    partitions: Count = 6
    replication: Count = 3
    min_isr: Count = 2
    segment_bytes: Size = 2**30
    # With tiered storage: at least this many bytes of a partition stay in the local log (`local.retention.bytes`).
    local_retention_bytes: Size | None = None


class Producers(_Section):
    """`count` producers, each sending `rate` records per second to the partitions of its topics."""

    name: Name
    count: Count = 1
    topics: list[Name]
    rate: Rate = 50
    record_bytes: Size = 300
    # 0: all partitions equally often; 1: the second partition gets 1/2 of the first's records, the third 1/3, …
    skew: Annotated[float, Field(ge=0, le=10)] = 0
    linger_ms: Millis = 5
    batch_bytes: Size = 16_384
    buffer_bytes: Size = 33_554_432
    acks: Literal["all", 0, 1] = "all"
    request_timeout_ms: Annotated[int, Field(ge=1, le=2**31 - 1)] = 30_000
    retries: Annotated[int, Field(ge=0, le=2**31 - 1)] = 2**31 - 1
    retry_backoff_ms: Millis = 100
    max_in_flight: Count = 5
    # The interval between a producer's transactions, and the fraction of them that are aborted.
    transaction_ms: Annotated[int, Field(ge=1, le=86_400_000)] | None = None
    abort_share: Annotated[float, Field(ge=0, le=1)] = 0
    quota_bytes_per_second: Rate | None = None
    quota_request_percentage: Rate | None = None
    user: Name | None = None

    @model_validator(mode="after")
    def _acknowledged(self) -> Self:
        if self.transaction_ms is not None and self.acks != "all":
            raise ValueError("transaction_ms needs acks all: Kafka requires it of transactional producers")
        return self


def _regular_expression(pattern: str | None) -> str | None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


class Consumers(_Section):
    """`count` consumers with one of three subscriptions: `topics`, a `pattern` of topics, or partitions to `assign`."""

    name: Name
    count: Count = 1
    group: Name | None = None
    topics: list[Name] | None = None
    pattern: Annotated[str | None, AfterValidator(_regular_expression)] = None
    assign: dict[Name, list[Annotated[int, Field(ge=0)]]] | None = None
    static_members: bool = False
    start_after_s: Seconds = 0
    start_within_s: Seconds = 1
    # The group uses the first assignor that all its members support.
    assignors: Annotated[list[Literal["range", "roundrobin"]], Field(min_length=1)] = ["range"]
    poll_timeout_ms: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1000
    # Time until the next poll after a poll that returned no records.
    idle_ms: Millis = 0
    max_poll_records: Count = 500
    process_us: Annotated[float, Field(ge=0, le=60_000_000)] = 20
    reset: Literal["latest", "earliest", "none"] = "latest"
    commit: Literal["automatic", "sync", "async", "never"] = "automatic"
    auto_commit_interval_ms: Annotated[int, Field(ge=1, le=2**31 - 1)] = 5000
    session_timeout_ms: Annotated[int, Field(ge=6000, le=1_800_000)] = 45_000
    heartbeat_interval_ms: Annotated[int, Field(ge=1, le=1_800_000)] = 3000
    max_poll_interval_ms: Annotated[int, Field(ge=1, le=2**31 - 1)] = 300_000
    fetch_min_bytes: Size = 1
    fetch_max_wait_ms: Millis = 500
    fetch_max_bytes: Size = 52_428_800
    max_partition_fetch_bytes: Size = 1_048_576
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    metadata_max_age_ms: Annotated[int, Field(ge=100, le=2**31 - 1)] = 300_000
    quota_bytes_per_second: Rate | None = None
    quota_request_percentage: Rate | None = None
    user: Name | None = None

    @model_validator(mode="after")
    def _one_subscription(self) -> Self:
        if sum(way is not None for way in (self.topics, self.pattern, self.assign)) != 1:
            raise ValueError("expected exactly one of topics, pattern, assign")
        return self

    @model_validator(mode="after")
    def _time_passes(self) -> Self:
        if not self.poll_timeout_ms and not self.idle_ms:
            raise ValueError("poll_timeout_ms 0 needs an idle_ms above 0, so that time passes between polls")
        return self

    @property
    def group_id(self) -> str:
        return self.group or self.name


class ShareWorkers(_Section):
    """`count` members of a share group. Each processes the records of one response at a time, then acknowledges them.

    `commit` is `sync` if a worker acknowledges in a separate request after each response, or `poll` if with its next
    fetch. It releases or rejects a random fraction of the records, and accepts the others.
    """

    name: Name
    count: Count = 1
    start_after_s: Seconds = 0
    start_within_s: Seconds = 1
    max_poll_records: Count = 500
    process_us: Annotated[float, Field(ge=0, le=60_000_000)] = 20
    acquire: Literal["batch_optimized", "record_limit"] = "batch_optimized"
    commit: Literal["sync", "poll"] = "poll"
    release_share: Annotated[float, Field(ge=0, le=1)] = 0
    reject_share: Annotated[float, Field(ge=0, le=1)] = 0
    fetch_min_bytes: Size = 1
    fetch_max_wait_ms: Annotated[int, Field(ge=1, le=2**31 - 1)] = 500
    fetch_max_bytes: Size = 52_428_800

    @model_validator(mode="after")
    def _at_most_all(self) -> Self:
        if self.release_share + self.reject_share > 1:
            raise ValueError("the sum of release_share and reject_share must be <= 1")
        return self


class ShareGroupSettings(_Section):
    """A share group: the topics that its workers read, and its settings at the brokers."""

    name: Name
    topics: list[Name]
    workers: Annotated[list[ShareWorkers], Field(min_length=1)]
    record_lock_duration_ms: Annotated[int, Field(ge=1, le=2**31 - 1)] = 30_000
    delivery_count_limit: Count = 5
    partition_max_record_locks: Count = 2000
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    reset: Literal["latest", "earliest"] = "latest"
    heartbeat_interval_ms: Annotated[int, Field(ge=1, le=1_800_000)] = 5000
    session_timeout_ms: Annotated[int, Field(ge=1, le=1_800_000)] = 45_000
    # The time that the share coordinator takes to write a state.
    state_write: Delay = Delay(median_ms=3, p75_ms=5)


class TopicCreations(_Section):
    """An admin client that creates a topic every `every_ms` and waits for its leaders.

    `election` is the time until a new partition has its leader.
    """

    name: Name = "admin"
    every_ms: Annotated[int, Field(ge=1, le=86_400_000)] = 1000
    prefix: Name = "new"
    partitions: Count = 4
    replication: Count = 3
    timeout_ms: int = 5000
    election: Delay = Delay(median_ms=20, p75_ms=60)


class Scenario(_Section):
    """A scenario file. `shows` is a sentence about the trace. Only predictions use `fitted`."""

    shows: Name
    seed: int = 1
    duration_s: Annotated[float, Field(gt=0, le=86_400)] = 30
    brokers: Brokers = Brokers()
    topics: list[Topic] = []
    producers: list[Producers] = []
    consumers: list[Consumers] = []
    share_groups: list[ShareGroupSettings] = []
    topic_creations: list[TopicCreations] = []
    incidents: list[Incident] = []
    fitted: Fitted | None = None

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        topics = [topic.name for topic in self.topics]
        _require_unique("topics", topics)
        workers = self.share_workers
        clients: list[Producers | Consumers | ShareWorkers | TopicCreations] = [
            *self.producers,
            *self.consumers,
            *workers,
            *self.topic_creations,
        ]
        if self.fitted is None:
            _require_unique("clients", [client.name for client in clients])
        else:
            # A recorded client may produce and consume under one name.
            _require_unique("producers", [producer.name for producer in self.producers])
            _require_unique("consumers", [consumer.name for consumer in self.consumers])
        _require_unique("share groups", [group.name for group in self.share_groups])
        for topic in self.topics:
            if topic.replication > self.brokers.count:
                raise ValueError(
                    f"topic {topic.name}: replication {topic.replication} exceeds the number of brokers "
                    f"({self.brokers.count})"
                )
        for producers in self.producers:
            for name in producers.topics:
                _require_known("topic", name, topics, producers.name)
        for consumers in self.consumers:
            for name in (*(consumers.topics or ()), *(consumers.assign or ())):
                _require_known("topic", name, topics, consumers.name)
        for group in self.share_groups:
            for name in group.topics:
                _require_known("topic", name, topics, group.name)
        for incident in self.incidents:
            self._require_targets(incident)
        return self

    def _require_targets(self, incident: Any) -> None:
        """Raise ValueError if the incident names a broker, topic or consumer that does not exist."""
        brokers = list(range(1, self.brokers.count + 1))
        for key in ("broker", "to"):
            if hasattr(incident, key):
                _require_known("broker", getattr(incident, key), brokers, incident.what)
        if hasattr(incident, "topic"):
            _require_known("topic", incident.topic, [topic.name for topic in self.topics], incident.what)
        for broker in getattr(incident, "brokers", None) or ():
            _require_known("broker", broker, brokers, incident.what)
        if getattr(incident, "consumer", None) is not None:
            groups: list[Consumers | ShareWorkers] = [*self.consumers, *self.share_workers]
            sets = [consumers.name for consumers in groups]
            members = [f"{consumers.name}-{at}" for consumers in groups for at in range(1, consumers.count + 1)]
            _require_known("consumer", incident.consumer, [*sets, *members], incident.what)
        if hasattr(incident, "producer"):
            sets = [producers.name for producers in self.producers]
            members = [f"{producers.name}-{at}" for producers in self.producers for at in range(1, producers.count + 1)]
            _require_known("producer", incident.producer, [*sets, *members], incident.what)

    @property
    def share_workers(self) -> list[ShareWorkers]:
        """The workers of all share groups."""
        return [workers for group in self.share_groups for workers in group.workers]

    def scaled(self, scale: float) -> Scenario:
        """Return the scenario with `scale` times as many producers, consumers and workers, at least one of each."""

        def more(clients: Any) -> list[Any]:
            return [client.model_copy(update={"count": max(1, round(client.count * scale))}) for client in clients]

        groups = [group.model_copy(update={"workers": more(group.workers)}) for group in self.share_groups]
        clients = {"producers": more(self.producers), "consumers": more(self.consumers), "share_groups": groups}
        return self.model_copy(update=clients)

    def with_brokers(self, changed: Mapping[str, str], origin: str) -> Scenario:
        """Return the scenario with other values for keys of its brokers.

        Args:
            changed: The values as YAML text, by key.
            origin: The option that they come from, for error messages.

        Raises:
            UserError: A key is unknown or a value is invalid.
        """
        if not changed:
            return self
        try:
            values = {**self.brokers.model_dump(), **{key: yaml.safe_load(text) for key, text in changed.items()}}
            return Scenario.model_validate({**self.model_dump(exclude_unset=True), "brokers": values})
        except ValidationError as error:
            raise UserError(_first_mistake(origin, error)) from None
        except yaml.YAMLError as error:
            raise UserError(f"{origin}: not YAML: {error}") from None


def _require_unique(what: str, names: list[str]) -> None:
    duplicate = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if duplicate is not None:
        raise ValueError(f"two {what} are named {duplicate}; rename one")


def _require_known(what: str, name: str | int, known: list[Any], where: str) -> None:
    if name not in known:
        raise ValueError(f"{where}: no {what} {name} in the scenario (it has: {', '.join(map(str, known)) or 'none'})")


def scenarios_folder() -> Path:
    """Return the folder of the bundled scenarios."""
    return conf_folder() / "scenarios"


def scenario_names() -> list[str]:
    """Return the names of the bundled scenarios."""
    return sorted(file.stem for file in scenarios_folder().glob("*.yaml"))


def load_scenario(name_or_file: str) -> Scenario:
    """Load a bundled scenario by its name, or a scenario file by its path. Raises UserError if it does not exist."""
    path = Path(name_or_file)
    if not path.exists() and path.suffix not in (".yaml", ".yml"):
        path = scenarios_folder() / f"{name_or_file}.yaml"
        if not path.exists():
            raise UserError(f"--scenario {name_or_file}: not a file and not one of {', '.join(scenario_names())}")
    return read_scenario(path)


def read_scenario(path: Path) -> Scenario:
    """Read and validate a scenario file. Raises UserError with the first mistake."""
    values = read_mapping(path)
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        raise UserError(_first_mistake(path, error)) from None


def _first_mistake(path: Path | str, error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    origin = f"{path}: {place}" if place else str(path)
    if first["type"] == "extra_forbidden":
        return f"{origin}: unknown key"
    if first["type"] == "missing":
        return f"{origin}: missing"
    message = first["msg"].removeprefix("Value error, ")
    given = first["input"]
    return f"{origin}: {message}" + ("" if isinstance(given, dict | list) else f" (got {given!r})")
