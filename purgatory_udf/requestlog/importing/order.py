"""The total order of an import's events: time, then rank, then where each comes from. It decides their `seq`."""

from __future__ import annotations

from typing import NamedTuple

from purgatory_udf.requestlog.lines.request import Place
from purgatory_udf.requestlog.partitions.sweep import REQUEST, Timed
from purgatory_udf.requestlog.requests.operation import LoggedOperation

NOBODY = Place(-1, -1)


class Order(NamedTuple):
    """Simultaneous events: state before what it makes possible, requests last; by partition, or by line."""

    time_us: int
    rank: int
    broker: int
    topic: str
    partition: int
    file: int
    line: int
    sub: int


def order_of_change(broker: int, topic: str, partition: int, number: int, timed: Timed) -> Order:
    """`number`: the event's place in its partition's timeline."""
    return Order(timed.at_us, timed.rank, broker, topic, partition, *(timed.cause or NOBODY), number)


def order_of_operation(operation: LoggedOperation) -> Order:
    time_us = operation.event["time_us"]
    return Order(time_us, REQUEST, operation.broker, "", -1, *operation.place, operation.sub)
