"""More of the same client, or none of it: copies have names of their own."""

from __future__ import annotations

from dataclasses import replace

from purgatory_udf.fitted.plan import ProducerPlan, ReaderPlan

# So many of one client are as many as anybody would have played.
MOST_COPIES = 1000


def copied_readers(reader: ReaderPlan, count: int) -> list[ReaderPlan]:
    """Each reads what the consumer reads, as one of a group of its own."""
    return [replace(reader, client=copy_name(reader.client, number)) for number in range(count)]


def copied_producers(producer: ProducerPlan, count: int) -> list[ProducerPlan]:
    """Each begins elsewhere in the circle of the records, so that they do not walk in step."""
    length = len(producer.gaps_ms)
    return [
        replace(
            producer,
            client=copy_name(producer.client, number),
            begin_at=(producer.begin_at + number * length // count) % max(1, length),
        )
        for number in range(count)
    ]


def copy_name(client: str, number: int) -> str:
    return f"{client}#{number + 1}" if number else client


def is_copy(name: str, client: str) -> bool:
    """Whether that is the client's own name, or one of its copies'."""
    return name == client or (name.startswith(f"{client}#") and name[len(client) + 1 :].isdigit())
