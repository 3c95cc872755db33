"""What an import of request logs was asked for, and what came of it."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from purgatory_udf.common import secrets
from purgatory_udf.common.errors import CheckFailedError, UserError
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster.internal_topics import has_classic_coordinator
from purgatory_udf.sources.request_log.lines.log_files import open_text, zone_of
from purgatory_udf.sources.trace_files.import_report import EVENTS_PER_FILE
from purgatory_udf.sources.trace_files.input_files import InputFile
from purgatory_udf.sources.trace_files.text_lines import PIECE_BYTES, USUAL, FileLimits

# Stable pseudonyms for topics, groups, clients and members: the same name has the same pseudonym in every import.
#
# A pseudonym is a keyed hash of the name. Who knows the key, or guesses the name and nobody gave a key, can confirm
# the guess; so give a key of your own before you share an import, and keep it. Kafka's own topics and assignors keep
# their names: they tell nothing, and what they mean to a broker is worth knowing.


DEFAULT_KEY = "purgatory-replay"
DIGITS = 12

# How the clients of Kafka's own project share out a group's work; an assignor of somebody else's may bear their name.
OWN_PROTOCOLS = frozenset(
    {
        *("range", "roundrobin", "sticky", "cooperative-sticky"),  # consumers
        *("default", "compatible", "sessioned"),  # Connect
        "stream",  # Streams
    }
)

Rename = Callable[[str, str], str]


def pseudonyms(key: str = DEFAULT_KEY) -> Rename:
    """A function of (kind, name): `topic-3f9a…`. An empty name stays empty."""
    secret = key.encode()

    def rename(kind: str, name: str) -> str:
        if not name or (kind == "topic" and name.startswith("__")) or (kind == "protocol" and name in OWN_PROTOCOLS):
            return name
        digest = hmac.new(secret, f"{kind}\0{name}".encode(), hashlib.sha256).hexdigest()
        return f"{kind}-{digest[:DIGITS]}"

    return rename


# Which field holds a name of which kind. A member's id begins with its client's name.
FIELDS = {
    "topic": "topic",
    "group": "group",
    "client_id": "client",
    "member_id": "member",
    "assigned_member_id": "member",
    "leader_member_id": "member",
    "group_instance_id": "instance",
}


def anonymised(event: dict[str, Any], rename: Rename) -> dict[str, Any]:
    """The event with pseudonyms for names, in its partitions, topics and protocols as well."""
    changed = {
        field: rename(FIELDS[field], value) if field in FIELDS and value is not None else value
        for field, value in event.items()
    }
    for places in ("partitions", "topics"):
        named = changed.get(places)
        if isinstance(named, list):
            changed[places] = [{**place, "topic": rename("topic", place["topic"])} for place in named]
    if changed.get("protocols"):
        changed["protocols"] = [rename("protocol", name) for name in changed["protocols"]]
    return changed


# How long the lines of a growing log are held back: what they tell of a moment is there by then.
HOLD_MS = 60_000


@dataclass(frozen=True)
class RequestLogOptions:
    """`topics`, `batches` and `isr` are files beside the log; `zone` is that of times without one; `hold_ms` is for a
    log that grows.

    `piece_bytes` is how much a task reads at once; nothing in the tables depends on it.
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
            self.classic  # noqa: B018 (it is read to be refused here)
        except ValueError as error:
            raise UserError(f"--kafka-version: {error}") from None

    @property
    def classic(self) -> bool | None:
        """Of the brokers' group coordinators; None: the log tells."""
        return None if self.kafka_version is None else has_classic_coordinator(self.kafka_version)

    def require_files(self) -> None:
        """The files beside the log can be opened; what they hold is seen when they are read."""
        for path in filter(None, (self.topics, self.batches, self.isr)):
            with open_text(path):
                pass

    def run(self, files: Sequence[InputFile]) -> str:
        """The run's name: the given one, or one that the same input and options have again."""
        if self.run_id:
            return self.run_id
        asked = [self.settings(), [(file.name, file.size, file.modified) for file in files]]
        return f"ingest-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]}"

    def settings(self) -> dict[str, Any]:
        """What decides the tables, given the input. The key of pseudonyms stays with who gave it."""
        beside = {name: getattr(self, name) for name in ("topics", "batches", "isr")}
        if self.anonymise:
            # A path may tell whose the logs are.
            beside = {name: bool(path) for name, path in beside.items()}
        others = {name: getattr(self, name) for name in ("zone", "anonymise", "events_per_file")}
        if self.kafka_version is not None:
            others["kafka_version"] = self.kafka_version
        return {"source": "request-log", **beside, **others, **self.limits.settings()}


@dataclass(frozen=True)
class ImportReport:
    """`report` counts by cause what was read, and what could not be derived or had to be supposed."""

    run_id: str
    files: int
    report: Report
    accepted: int
    rejected: int
    events: str
    rejected_events: str
    recorded: str

    def counts(self) -> dict[str, Any]:
        """The counts that the `runs` table keeps."""
        return {
            "files": self.files,
            "events": self.accepted,
            "rejected": self.rejected,
            "causes": dict(sorted(self.report.counts.items())),
        }

    def summary(self) -> list[str]:
        """What went in, what came out and where it is, then every cause that occurred."""
        counts = self.report.counts
        return [
            f"input     {counts['lines']:,} lines of {self.files:,} files",
            f"events    {self.accepted:,}  {self.events}",
            f"recorded  {counts['operations']:,}  {self.recorded}",
            f"rejected  {self.rejected:,}  {self.rejected_events}",
            "",
            *self.report.sentences(),
        ]

    def require_few_rejected(self, max_rejected: float) -> None:
        """`max_rejected` is in percent of the requests in the log."""
        meant = self.report.counts["requests"] + self.report.counts["bad_lines"]
        if self.rejected * 100 > max_rejected * meant:
            raise CheckFailedError(
                f"{self.rejected:,} of {meant:,} requests were rejected, more than max_rejected ({max_rejected:g} %); "
                f"{self.rejected_events} says why"
            )
