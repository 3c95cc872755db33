"""Stable pseudonyms for topics, groups, clients and members: the same name has the same pseudonym in every import.

A pseudonym is a keyed hash of the name. Who knows the key, or guesses the name and nobody gave a key, can confirm the
guess; so give a key of your own before you share an import, and keep it. Kafka's own topics and assignors keep their
names: they tell nothing, and what they mean to a broker is worth knowing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

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
    for field in ("partitions", "topics"):
        named = changed.get(field)
        if isinstance(named, list):
            changed[field] = [{**place, "topic": rename("topic", place["topic"])} for place in named]
    if changed.get("protocols"):
        changed["protocols"] = [rename("protocol", name) for name in changed["protocols"]]
    return changed
