"""Incremental fetch sessions (KIP-227): a fetch says only what has changed since the last one.

What the broker waits on is the session's whole list, so that is what the event has. A partition that gave data goes to
the end of the list: the next answer begins with others.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from purgatory_udf.reference.topic_partition import TopicPartition
from purgatory_udf.simulate.messages import Fetch, Fetched, Want

NO_SESSION = 0
NOT_FOUND = "FETCH_SESSION_ID_NOT_FOUND"

Wants = dict[TopicPartition, Want]


class FetchSessionHandler:
    """The client's side, one for each broker."""

    def __init__(self) -> None:
        self._session = NO_SESSION
        self._known: Wants = {}

    def next(self, wants: Wants, **fields: Any) -> Fetch:
        """The fetch that makes the session's list what is wanted now."""
        known = self._known if self._session != NO_SESSION else {}
        self._known = dict(wants)
        return Fetch(
            session=self._session,
            wants={key: want for key, want in wants.items() if known.get(key) != want},
            forgotten=[key for key in known if key not in wants],
            **fields,
        )

    def answered(self, answer: Fetched) -> None:
        self._session = answer.session

    def failed(self) -> None:
        """Begin anew: the broker may have lost the session, or this request."""
        self._session = NO_SESSION


class FetchSessions:
    """The broker's side: of every session, the whole list in its order."""

    def __init__(self) -> None:
        self._lists: dict[int, Wants] = {}
        self._ids = count(1)

    def update(self, fetch: Fetch) -> tuple[int, Wants] | None:
        """The session and what it wants now; None where the session is not known (any more)."""
        if fetch.session == NO_SESSION:
            session = next(self._ids)
            self._lists[session] = dict(fetch.wants)
            return session, self._lists[session]
        wants = self._lists.get(fetch.session)
        if wants is None:
            return None
        for key in fetch.forgotten:
            wants.pop(key, None)
        wants.update(fetch.wants)
        return fetch.session, wants

    def gave(self, session: int, keys: list[TopicPartition]) -> None:
        wants = self._lists.get(session)
        for key in keys:
            if wants is not None and key in wants:
                wants[key] = wants.pop(key)

    def clear(self) -> None:
        self._lists.clear()
