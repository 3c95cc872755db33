"""Which topic of which cluster, and what its messages are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from purgatory_udf import secrets
from purgatory_udf.errors import UserError

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:]+\]|[\w.-]+):(\d{1,5})")
_TOPIC = re.compile(r"[\w.-]{1,249}")


# Options of a request log that is read to its end.
_NOT_FOLLOWED = {
    "batches": "the file knows nothing of what is yet to be appended",
    "isr": "the file knows nothing of what is yet to change; metadata answers in the log do",
    "anonymise": "what is held back keeps its names; anonymise when the topic is read once",
}


class Messages(StrEnum):
    EVENTS = "events"
    REQUEST_LOG = "request-log"


@dataclass(frozen=True)
class KafkaTopic:
    """`client` are settings of Kafka's own consumer, as `security.protocol=SASL_SSL`; `client_file` has more of them.

    They may hold secrets, so nothing prints them, and no table has them.
    """

    bootstrap: str
    topic: str
    messages: Messages = Messages.EVENTS
    client: Sequence[str] = field(default=(), repr=False)
    client_file: str | None = None

    def __post_init__(self) -> None:
        self.addresses()
        if not _TOPIC.fullmatch(self.topic):
            raise UserError(f"--topic {self.topic}: not a topic's name")
        for setting in self.client:
            key, equals, value = setting.partition("=")
            if not key or not equals:
                raise UserError(f"--client {key[:1]}…: expected KEY=VALUE")
            secrets.require_none("--client", key, value)
        self.reader()

    def require_what_fits(self, given: Mapping[str, object]) -> None:
        """`given` are an ingest's options by name."""
        if self.messages is Messages.EVENTS:
            for name in ("topics", "batches", "isr", "zone", "anonymise", "anonymise_key"):
                if given.get(name):
                    raise UserError(f"--{name.replace('_', '-')} goes with --messages request-log")
            if given.get("hold_ms") is not None:
                raise UserError("--hold-ms goes with --messages request-log")
            return
        if given.get("max_disorder_ms") is not None:
            raise UserError("--max-disorder-ms goes with --messages events: a request log is put in order")
        for name, why in _NOT_FOLLOWED.items():
            if given.get("follow") and given.get(name):
                raise UserError(f"--{name} does not go with --follow: {why}")
        if given.get("hold_ms") is not None and not given.get("follow"):
            raise UserError("--hold-ms goes with --follow: a topic that is read once is known to its end")

    def addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports; any of them will do."""
        addresses = []
        for word in self.bootstrap.split(","):
            match = _ADDRESS.fullmatch(word.strip())
            if match is None:
                raise UserError(f"--bootstrap {self.bootstrap}: expected HOST:PORT, separated by commas")
            addresses.append((match[1].strip("[]"), int(match[2])))
        return addresses

    def reader(self) -> dict[str, str]:
        """Options of Spark's connector."""
        given = {key: secrets.resolved(value) for key, value in (word.split("=", 1) for word in self.client)}
        if self.client_file:
            given = secrets.read_file(self.client_file) | given
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            **{f"kafka.{key}": value for key, value in given.items()},
        }
