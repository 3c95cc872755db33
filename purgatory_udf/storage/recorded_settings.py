"""Settings of the recorded brokers: stored with the import of a request log, and used by replays of its events."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory_udf.backend.backend import Session
from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.overrides import apply_override
from purgatory_udf.storage import run_records

log = logging.getLogger(__name__)

INITIAL_DELAY = "group.initial.rebalance.delay.ms"
MIN_SESSION, MAX_SESSION = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
CONSUMER_SESSION = "group.consumer.session.timeout.ms"
CONSUMER_INTERVAL = "group.consumer.heartbeat.interval.ms"
REMOTE_FETCH_WAIT = "remote.fetch.max.wait.ms"
LOOKUP_TIMEOUT = "remote.list.offsets.request.timeout.ms"
COMMIT_TIMEOUT = "offsets.commit.timeout.ms"
FOLLOWER_WAIT, FOLLOWER_BYTES = "replica.fetch.wait.max.ms", "replica.fetch.min.bytes"

# The requests that show a setting.
_SHOWN_BY = {
    INITIAL_DELAY: "first joins of empty groups",
    MIN_SESSION: "joins",
    MAX_SESSION: "joins",
    CONSUMER_SESSION: "members whose session expired",
    CONSUMER_INTERVAL: "heartbeats",
    REMOTE_FETCH_WAIT: "expired fetches",
    LOOKUP_TIMEOUT: "expired lookups",
    COMMIT_TIMEOUT: "expired commits",
    FOLLOWER_WAIT: "fetches of followers",
    FOLLOWER_BYTES: "fetches of followers",
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
    """A setting of the brokers as a log shows it.

    Attributes:
        name: Kafka's name.
        low, high: Bounds of the value.
        value: The most likely value.
        certain: Whether no other value is likely.
        requests: Number of requests that show it.
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
        """Whether the recording is compatible with the value."""
        return value == self.value or (isinstance(value, int) and self.low <= value <= self.high)


@dataclass(frozen=True)
class Contradiction:
    """A setting of a replay that differs from what the recording shows."""

    key: str
    value: Any
    recorded: RecordedSetting

    def __str__(self) -> str:
        return f"{self.key}={self.value} contradicts the recording: {self.recorded}"


def recorded_settings(session: Session, events: str) -> list[RecordedSetting]:
    """Return the settings stored by the import that wrote the table `events`; none if it was no request log."""
    folder = events.rstrip("/").rpartition("/")[0] or "."
    run = run_records.load(session, f"{folder}/runs", "ingest")
    return [RecordedSetting(**setting) for setting in run.counts.get("settings", ())] if run else []


def with_recorded(config: Config, settings: Sequence[RecordedSetting]) -> Config:
    """Return the configuration with the recorded value of each certain setting that it does not set.

    A factor such as x0.5 applies to the recorded value.
    """
    values = config.model_dump(exclude_unset=True)
    for setting in _used(settings):
        *path, name = KEYS[setting.name].split(".")
        section = values
        for part in path:
            section = section.setdefault(part, {})
        given = section.get(name, setting.value)
        section[name] = apply_override(setting.value, given) if isinstance(given, str) else given
    return Config.model_validate(values)


def contradictions(config: Mapping[str, Any], settings: Sequence[RecordedSetting]) -> list[Contradiction]:
    """Return the settings of a configuration, as its JSON values, that contradict certain ones of the recording."""
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
