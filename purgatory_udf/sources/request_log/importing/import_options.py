"""Options of an import of request logs, pseudonyms for names, and the import's report."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from purgatory_udf.common import secrets
from purgatory_udf.common.console import counted
from purgatory_udf.common.errors import CheckFailedError, UserError
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.importing.broker_pauses import BrokerPause
from purgatory_udf.sources.request_log.internal_topics import has_classic_coordinator
from purgatory_udf.sources.request_log.log_files import open_text, zone_of
from purgatory_udf.sources.trace_files.input_files import InputFile, skipped_links
from purgatory_udf.sources.trace_files.text_lines import PIECE_BYTES, USUAL, FileLimits
from purgatory_udf.sources.trace_files.trace_reader import EVENTS_PER_FILE
from purgatory_udf.storage.run_records import RecordedSetting

# Stable pseudonyms for topics, groups, clients and members: the same name has the same pseudonym in every import.
#
# A pseudonym is a keyed hash of the name. With the key, or with the default key, a guessed name can be confirmed: use a
# secret key (`--anonymise-key`) for an import that leaves your organization. Kafka's internal topics and built-in
# assignors keep their names: these identify no user, and decide how a broker treats them.


DEFAULT_KEY = "purgatory-replay"
DIGITS = 12

# Protocols of Kafka's own clients. A third-party assignor with one of these names keeps it, too.
OWN_PROTOCOLS = frozenset(
    {
        *("range", "roundrobin", "sticky", "cooperative-sticky"),  # consumers
        *("default", "compatible", "sessioned"),  # Connect
        "stream",  # Streams
    }
)

Rename = Callable[[str, str], str]


def pseudonyms(key: str = DEFAULT_KEY) -> Rename:
    """Return a function from (kind, name) to a pseudonym such as `topic-3f9a…`.

    `key` is the secret key of the hash. Empty names and the names of Kafka's own topics and protocols stay unchanged.
    """
    secret = key.encode()

    def rename(kind: str, name: str) -> str:
        if not name or (kind == "topic" and name.startswith("__")) or (kind == "protocol" and name in OWN_PROTOCOLS):
            return name
        digest = hmac.new(secret, f"{kind}\0{name}".encode(), hashlib.sha256).hexdigest()
        return f"{kind}-{digest[:DIGITS]}"

    return rename


# Kind of name by field. A member id starts with the client id, so it is replaced as well.
FIELDS = {
    "topic": "topic",
    "group": "group",
    "client_id": "client",
    "member_id": "member",
    "assigned_member_id": "member",
    "leader_member_id": "member",
    "group_instance_id": "instance",
    "subscribed_regex": "pattern",
}


def anonymised(event: dict[str, Any], rename: Rename) -> dict[str, Any]:
    """Return the event with pseudonyms for names, also in its partitions, topics, protocols and assignments."""
    changed = {
        field: rename(FIELDS[field], value) if field in FIELDS and value is not None else value
        for field, value in event.items()
    }
    for places in ("partitions", "topics", "owned", "assigned", "acknowledgements", "state_write_errors"):
        named = changed.get(places)
        if isinstance(named, list):
            changed[places] = [{**place, "topic": rename("topic", place["topic"])} for place in named]
    if event.get("assignments"):
        changed["assignments"] = [anonymised(of_member, rename) for of_member in event["assignments"]]
    if event.get("subscribed_topics"):
        changed["subscribed_topics"] = [rename("topic", name) for name in event["subscribed_topics"]]
    if changed.get("protocols"):
        changed["protocols"] = [rename("protocol", name) for name in changed["protocols"]]
    return changed


# Number of pauses that the summary lists.
_MOST_PAUSES = 10

# How long the requests of a growing log are held back, until later lines complete the facts.
HOLD_MS = 60_000


@dataclass(frozen=True)
class RequestLogOptions:
    """Options of an import of request logs.

    `topics`, `batches` and `isr` are paths of files with metadata. `zone` is the time zone of times without one.
    `hold_ms` applies to a growing log. `piece_bytes` is the size of the pieces that tasks read; it does not affect the
    tables.
    """

    paths: Sequence[str]
    out: str
    topics: str | None = None
    batches: str | None = None
    isr: str | None = None
    zone: str = "UTC"
    anonymise: bool = False
    anonymise_key: str = field(default=DEFAULT_KEY, repr=False)
    overwrite: bool = False
    events_per_file: int = EVENTS_PER_FILE
    run_id: str | None = None
    piece_bytes: int = PIECE_BYTES
    hold_ms: int = HOLD_MS
    kafka_version: str | None = None
    limits: FileLimits = USUAL

    def __post_init__(self) -> None:
        if self.anonymise_key != DEFAULT_KEY and not self.anonymise:
            raise UserError("--anonymise-key needs --anonymise")
        secrets.resolve_environment(self.anonymise_key)
        try:
            zone_of(self.zone)
        except ValueError as error:
            raise UserError(f"--zone {self.zone}: {error}") from None
        try:
            self.classic  # noqa: B018 (the property validates the version)
        except ValueError as error:
            raise UserError(f"--kafka-version: {error}") from None

    @property
    def classic(self) -> bool | None:
        """Whether the brokers have classic group coordinators. None without `kafka_version`; then the log decides."""
        return None if self.kafka_version is None else has_classic_coordinator(self.kafka_version)

    def require_files(self) -> None:
        """Raise `UserError` if a file with metadata cannot be opened. The contents are validated when it is read."""
        for path in filter(None, (self.topics, self.batches, self.isr)):
            with open_text(path):
                pass

    def run(self, files: Sequence[InputFile]) -> str:
        """Return the given run id, or one derived from input and options."""
        if self.run_id:
            return self.run_id
        fingerprint_input = [self.settings(), [(file.name, file.size, file.modified) for file in files]]
        return f"ingest-{hashlib.sha256(json.dumps(fingerprint_input).encode()).hexdigest()[:12]}"

    def settings(self) -> dict[str, Any]:
        """Return the options that affect the tables, without the secret key of the pseudonyms."""
        metadata_files = {name: getattr(self, name) for name in ("topics", "batches", "isr")}
        if self.anonymise:
            # A path may identify the owner of the logs.
            metadata_files = {name: bool(path) for name, path in metadata_files.items()}
        others = {name: getattr(self, name) for name in ("zone", "anonymise", "events_per_file")}
        if self.kafka_version is not None:
            others["kafka_version"] = self.kafka_version
        return {"source": "request-log", **metadata_files, **others, **self.limits.settings()}


@dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    `report` counts input, assumptions and omissions by cause. `skipped` has the links to files that are read under
    another name, `settings` the brokers' settings that the log shows, and `pauses` the times at which brokers stood
    still.
    """

    run_id: str
    files: int
    report: Report
    accepted: int
    rejected: int
    events: str
    rejected_events: str
    recorded: str
    skipped: Sequence[str] = ()
    settings: Sequence[RecordedSetting] = ()
    pauses: Sequence[BrokerPause] = ()

    def counts(self) -> dict[str, Any]:
        """Return the counts for the `runs` table."""
        return {
            "files": self.files,
            "events": self.accepted,
            "rejected": self.rejected,
            "causes": dict(sorted(self.report.counts.items())),
            "settings": [asdict(setting) for setting in self.settings],
        }

    def summary(self) -> list[str]:
        """Return lines of text: input, output with the tables' paths, causes that occurred, pauses, shown settings."""
        counts = self.report.counts
        return [
            f"input     {counted(counts['lines'], 'line')} of {counted(self.files, 'file')}",
            *skipped_links(self.skipped),
            f"events    {self.accepted:,}  {self.events}",
            f"recorded  {counts['operations']:,}  {self.recorded}",
            f"rejected  {self.rejected:,}  {self.rejected_events}",
            "",
            *self.report.sentences(),
            *self._pauses(),
            *setting_lines(self.settings),
        ]

    def _pauses(self) -> list[str]:
        more = len(self.pauses) - _MOST_PAUSES
        lines = [pause.sentence() for pause in self.pauses[:_MOST_PAUSES]]
        return [*([""] if lines else []), *lines, *([f"… and {counted(more, 'more pause')}"] if more > 0 else [])]

    def require_few_rejected(self, max_rejected: float) -> None:
        """Raise `CheckFailedError` if more than `max_rejected` percent were rejected, or no request became an event."""
        if not self.rejected and not self.report.counts["operations"]:
            raise CheckFailedError(
                f"no events: none of {counted(self.report.counts['requests'], 'request')} waits in a purgatory of a "
                "broker; import request logs of brokers, with fetches and produces"
            )
        total = self.report.counts["requests"] + self.report.counts["bad_lines"]
        if self.rejected * 100 > max_rejected * total:
            raise CheckFailedError(
                f"{self.rejected:,} of {total:,} requests were rejected, more than max_rejected ({max_rejected:g} %); "
                f"the reasons are in {self.rejected_events}"
            )


def setting_lines(settings: Sequence[RecordedSetting]) -> list[str]:
    """Return the settings of the brokers as lines of text, with a heading; no lines without settings."""
    return ["", "Settings that the log shows:", *(f"  {setting}" for setting in settings)] if settings else []
