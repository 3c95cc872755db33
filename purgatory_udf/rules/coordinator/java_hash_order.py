"""The order of Java's hash tables, on which the server-side assignors depend.

Kafka's assignors visit members and topics in the order of a `HashMap`, which they fill from a `TimelineHashMap`. Both
orders follow from the keys' hash codes, the sizes of the tables, and within a bucket from the order of insertion.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Iterable
from functools import lru_cache

_INT = 1 << 32
_LONG = 1 << 64
_FIBONACCI = -7046029254386353131


@lru_cache(maxsize=1 << 16)
def string_hash(text: str) -> int:
    """Return `String.hashCode()`, as an unsigned number of 32 bits."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8) + units[at + 1]) % _INT
    return value


@lru_cache(maxsize=1 << 16)
def uuid_bits(topic_id: str) -> tuple[int, int]:
    """Return the two signed 64-bit halves of a topic id, which is given as text in Kafka's form."""
    raw = urlsafe_b64decode(topic_id + "=" * (-len(topic_id) % 4))
    return int.from_bytes(raw[:8], "big", signed=True), int.from_bytes(raw[8:16], "big", signed=True)


def uuid_hash(topic_id: str) -> int:
    """Return `Uuid.hashCode()`, as an unsigned number of 32 bits."""
    most, least = uuid_bits(topic_id)
    both = (most ^ least) % _LONG
    return (both >> 32) ^ (both % _INT)


def map_order(keys: Iterable[str], hash_of: dict[str, int] | None = None) -> list[str]:
    """Return the keys in the order of a `HashMap` or `HashSet` into which they were put one by one.

    Args:
        keys: Distinct keys, in order of insertion.
        hash_of: The hash code of each key; by default that of the string.
    """
    keys = list(keys)
    size = 16
    while len(keys) > size * 3 // 4:
        size *= 2

    def bucket(key: str) -> int:
        code = string_hash(key) if hash_of is None else hash_of[key]
        return (code ^ (code >> 16)) & (size - 1)

    return sorted(keys, key=bucket)


def integer_order(numbers: Iterable[int]) -> list[int]:
    """Return partitions in the order of a `HashSet<Integer>` that was copied from another collection."""
    numbers = sorted(numbers)
    size = 16
    while size < len(numbers) / 0.75 + 1:
        size *= 2
    return sorted(numbers, key=lambda number: number & (size - 1))


class TimelineOrder:
    """The order of a `TimelineHashMap`: its keys in order of insertion, and the size of its table.

    Its iterator goes through the table slot by slot, and through each slot from the key that was inserted last.
    """

    def __init__(self, keys: Iterable[str] = (), size: int = 2) -> None:
        self.keys: dict[str, None] = dict.fromkeys(keys)
        self.size = size

    def put(self, key: str) -> None:
        """Insert or replace a key. Even a replacement may enlarge the table."""
        if (len(self.keys) + 1) * 0.75 > self.size:
            self.size *= 2
        self.keys.setdefault(key)

    def remove(self, key: str) -> None:
        self.keys.pop(key, None)

    def in_order(self) -> list[str]:
        shift = 65 - self.size.bit_length()

        def slot(key: str) -> int:
            code = string_hash(key)
            signed = code - _INT if code >= _INT // 2 else code
            return int((signed * _FIBONACCI) % _LONG >> shift)

        last_first = list(reversed(self.keys))
        last_first.sort(key=slot)
        return last_first
