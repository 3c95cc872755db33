"""Every request of a log taken apart, in whatever portions: sessions one by one, all other requests each by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from purgatory_udf.requestlog.cluster.context import Context
from purgatory_udf.requestlog.lines.line import MALFORMED, BadLine, malformed
from purgatory_udf.requestlog.lines.request import Request
from purgatory_udf.requestlog.report import Report
from purgatory_udf.requestlog.requests.facts import Fact, Key
from purgatory_udf.requestlog.requests.fetches import SessionReader
from purgatory_udf.requestlog.requests.operation import LoggedOperation
from purgatory_udf.requestlog.requests.take_apart import take_apart


class Parts(NamedTuple):
    """What one request came to."""

    broker: int
    operations: list[LoggedOperation]
    facts: list[tuple[Key, Fact]]
    bad: BadLine | None = None


def parts_of(requests: Iterable[Request], context: Context, report: Report) -> Iterator[Parts]:
    """Of requests other than fetches, in any order."""
    for request in requests:
        try:
            operations, facts = take_apart(request, context, report)
        except MALFORMED as error:
            yield Parts(request.broker, [], [], malformed(request, error))
        else:
            yield Parts(request.broker, operations, facts)


def parts_of_sessions(fetches: Iterable[tuple[str, Request]], context: Context, report: Report) -> Iterator[Parts]:
    """Of (session, fetch), together by broker and session, each session's in the order of handling."""
    for (broker, _), session in groupby(fetches, key=lambda fetch: (fetch[1].broker, fetch[0])):
        reader = SessionReader(context, report)
        for _, request in session:
            try:
                operation, facts = reader.read(request)
            except MALFORMED as error:
                yield Parts(broker, [], [], malformed(request, error))
            else:
                yield Parts(broker, [operation] if operation else [], facts)
                yield from copies_of(reader)
        yield Parts(broker, [], reader.finish())


def copies_of(reader: SessionReader) -> Iterator[Parts]:
    """What the reader has found out about the follower's own broker."""
    for broker, fact in reader.copied():
        yield Parts(broker, [], [fact])
