"""Events of the contract, row by row out of their columns, as records: an event, and a row for each key it touches.

The columns are those of `explode`. Keys are numbered as they are met.
"""

from __future__ import annotations

from purgatory_udf.common.configuration import INT32_MAX
from purgatory_udf.rules.engine.columns.column_access import (
    COLUMN,
    WORD,
    Words,
    begin_of,
    flag_of,
    int_of,
    known,
    long_of,
    same,
    spread,
    text_of,
)
from purgatory_udf.rules.engine.jit import Number
from purgatory_udf.rules.engine.jit.compiled_functions import entry, inlined, number, rule
from purgatory_udf.rules.engine.jit.records import Records, access, record, world
from purgatory_udf.rules.engine.loop.arena import ASKED, EVENT, HOME, MEMBER, NONE, TOLD, World
from purgatory_udf.rules.engine.loop.codes import CHANGES, KINDS, NO_PARTITION, UNKNOWN, Acks, Code, Error, Reader
from purgatory_udf.rules.engine.loop.engine_call import tells


class Of(Number):
    """The columns, by their places: of events, of what these list, and of changes."""

    TIME, SEQ, BROKER, TYPE = 0, 1, 2, 3
    ACKS, REPLICA, TIMEOUT, WAIT, LEAST, MOST, ISOLATION = 4, 5, 6, 7, 8, 9, 10
    PARTITIONS, TOPICS = 11, 12
    ITEM_TOPIC, ITEM_PARTITION, ITEM_LAST_OFFSET, ITEM_BYTES, ITEM_ERROR = 13, 14, 15, 16, 17
    ITEM_FETCH_OFFSET, ITEM_MOST, ITEM_EPOCH, ITEM_THROTTLED, ITEM_OFFSET = 18, 19, 20, 21, 22
    NEW_TOPIC, NEW_PARTITIONS = 23, 24
    CHANGE, TOPIC, PARTITION, OFFSET, BYTES, EPOCH, ISR, IN_SYNC, MIN_ISR = 25, 26, 27, 28, 29, 30, 31, 32, 33
    HARD, BATCHES, ITEM_PREFERRED = 34, 35, 36


ROW, SLOT = record("row"), record("", "key")
# A key's topic is the text of one of the rows that name it.
NAME = record("topic", "length broker partition batches rolls asked")

# What words stand for; what comes out; keys' names, and where to find these by hash.
TABLES = {
    "columns": COLUMN,
    "words": WORD,
    "events": EVENT,
    "asked": ASKED,
    "told": TOLD,
    "in_sync": MEMBER,
    "requests": ROW,
    "named": ROW,
    "names": NAME,
    "slots": SLOT,
    "homes": HOME,
}
# How many there are of each (of slots: in use), and how many parts and nodes they will be; `most`: the most bytes that
# a fetch is given; `mixed`: whether any event comes before one that is earlier.
WORLD = world(
    TABLES,
    *("event_count", "asked_count", "told_count", "members", "request_count", "named_count", "keys", "home_count"),
    *("slots", "parts", "nodes", "most", "mixed"),
)

_column_at, _word_at, _event_at, _asked_at, _told_at, _member_at = (
    access(name, TABLES, WORLD) for name in ("columns", "words", "events", "asked", "told", "in_sync")
)
_request_at, _named_at, _name_at, _slot_at, _home_at = (
    access(name, TABLES, WORLD) for name in ("requests", "named", "names", "slots", "homes")
)

_UNKNOWN, _NO_PARTITION, _ANYBODY = map(number, (UNKNOWN, NO_PARTITION, UNKNOWN))
_FEW_SLOTS = number(1 << 8)
# Multiples of these, of 32 bits, lie far apart from each other: a topic's partitions, and a broker's, have slots of
# their own.
_OF_PARTITION, _OF_BROKER, _LOW_BITS = number(0x9E3779B9), number(0x91E10DA5), number(2**32 - 1)
_ZERO, _UNBOUNDED = number(0), number(INT32_MAX)

WORDS = Words(
    [
        # By how often they come, for they are tried one after the other.
        {"partition": -1} | {name: int(code) for code, name in KINDS.items()},
        {name: int(code) for name, code in CHANGES.items()},
        {"read_committed": 1},
        {error.name: int(error) for error in Error if error is not Error.RECORDED},
    ]
)
_TYPES, _CHANGES, _ISOLATIONS, _ERRORS, _END = (number(border) for border in WORDS.borders)


@entry
def arrive(arrivals: Records, begin: int, end: int) -> None:
    """The columns' rows from `begin` on, up to `end`."""
    w = arrivals[0]
    _use_slots(w, min(_FEW_SLOTS, w.slots_room))
    for row in range(begin, end):
        code = _meant(w, Of.TYPE, row, _TYPES, _CHANGES, _ZERO)
        if code == Code.PRODUCE:
            _produce(w, row)
        elif code == Code.FETCH:
            _fetch(w, row)
        elif code == Code.DELETE_RECORDS:
            _delete(w, row)
        elif code == Code.CREATE_TOPICS:
            _create(w, row)
        elif code != 0:
            _change(w, row)


@inlined
def _long(w: World, column: int, row: int, absent: int) -> int:
    return long_of(_column_at(w, column), row, absent)


@inlined
def _int(w: World, column: int, row: int, absent: int) -> int:
    return int_of(_column_at(w, column), row, absent)


@rule
def _meant(w: World, column: int, row: int, begin: int, end: int, other: int) -> int:
    """What the row's word stands for, among those from `begin` to `end`."""
    text, length = text_of(_column_at(w, column), row)
    for at in range(begin, end):
        word = _word_at(w, at)
        if word.length == length and same(word.text, text, length):
            return word.number
    return other


@rule
def _key(w: World, broker: int, column: int, row: int, partition: int) -> int:
    """The number of the key whose topic is the column's text; a new one if it has not been met."""
    topic, length = text_of(_column_at(w, column), row)
    slot = _first_slot(w, broker, topic, length, partition)
    while True:
        key = _slot_at(w, slot).key
        if key == NONE:
            break
        name = _name_at(w, key)
        if (
            name.partition == partition
            and name.broker == broker
            and name.length == length
            and (name.topic == topic or same(name.topic, topic, length))
        ):
            return key
        slot = (slot + 1) & (w.slots - 1)
    key = w.keys
    w.keys += 1
    _slot_at(w, slot).key = key
    name = _name_at(w, key)
    name.broker, name.topic, name.length, name.partition = broker, topic, length, partition
    name.batches, name.rolls, name.asked = 0, 0, NONE
    if 2 * w.keys > w.slots:
        _use_slots(w, 2 * w.slots)
    return key


@inlined
def _first_slot(w: World, broker: int, topic: int, length: int, partition: int) -> int:
    mixed = 2 * spread(topic, length) + broker * _OF_BROKER + partition * _OF_PARTITION
    return (mixed & _LOW_BITS) * w.slots >> 32


@rule
def _use_slots(w: World, slots: int) -> None:
    """So many of them, and all keys in their places. They are as few as do: what is looked up stays near."""
    w.slots = slots
    for slot in range(slots):
        _slot_at(w, slot).key = NONE
    for key in range(w.keys):
        name = _name_at(w, key)
        slot = _first_slot(w, name.broker, name.topic, name.length, name.partition)
        while _slot_at(w, slot).key != NONE:
            slot = (slot + 1) & (slots - 1)
        _slot_at(w, slot).key = key


@inlined
def _event(w: World, row: int, code: int) -> int:
    e = w.event_count
    w.event_count += 1
    event = _event_at(w, e)
    event.t, event.seq = _long(w, Of.TIME, row, _UNKNOWN), _long(w, Of.SEQ, row, _UNKNOWN)
    event.broker, event.code, event.who = _int(w, Of.BROKER, row, _ZERO), code, UNKNOWN
    event.delay, event.least, event.most, event.mode = 0, 0, 0, 0
    event.hard, event.whole, event.sent = 0, 0, 0
    event.first, event.count, event.total, event.text, event.apart = w.asked_count, 0, 0, _UNKNOWN, 0
    if e > 0:
        before = _event_at(w, e - 1)
        if before.t > event.t or (before.t == event.t and before.seq > event.seq):
            w.mixed = 1
    return e


@inlined
def _asks(w: World, e: int, key: int, offset: int, size: int) -> int:
    """One more key that the request asks."""
    a = w.asked_count
    w.asked_count += 1
    event, asked = _event_at(w, e), _asked_at(w, a)
    asked.offset, asked.size, asked.key, asked.place = offset, size, key, event.count
    asked.epoch, asked.error, asked.throttled, asked.heap, asked.again = UNKNOWN, 0, 0, NONE, 0
    # A key that a request names twice has it on its list once.
    name = _name_at(w, key)
    if name.asked == e:
        asked.again, event.marked = 1, 1
    name.asked = e
    event.count += 1
    return a


@inlined
def _request(w: World, row: int, code: int, delay: int) -> int:
    e = _event(w, row, code)
    event = _event_at(w, e)
    event.delay = delay
    event.text = w.request_count
    _request_at(w, w.request_count).row = row
    w.request_count += 1
    home = 0
    while home < w.home_count and (_home_at(w, home).code != code or _home_at(w, home).broker != event.broker):
        home += 1
    if home == w.home_count:
        _home_at(w, home).code, _home_at(w, home).broker = code, event.broker
        w.home_count += 1
    return e


@inlined
def _items(w: World, lists: int, row: int) -> tuple[int, int]:
    """From where to where the row's items lie."""
    column = _column_at(w, lists)
    if not known(column, row):
        return 0, 0
    return begin_of(column, row), begin_of(column, row + 1)


@inlined
def _asks_item(w: World, e: int, item: int, offset: int, size: int) -> int:
    partition = _int(w, Of.ITEM_PARTITION, item, _NO_PARTITION)
    return _asks(w, e, _key(w, _event_at(w, e).broker, Of.ITEM_TOPIC, item, partition), offset, size)


@rule
def _produce(w: World, row: int) -> None:
    e = _request(w, row, Code.PRODUCE, _long(w, Of.TIMEOUT, row, _UNKNOWN))
    begin, end = _items(w, Of.PARTITIONS, row)
    sound = 0
    for item in range(begin, end):
        offset, size = _long(w, Of.ITEM_LAST_OFFSET, item, _UNKNOWN) + 1, _long(w, Of.ITEM_BYTES, item, _ZERO)
        asked = _asked_at(w, _asks_item(w, e, item, offset, size))
        if known(_column_at(w, Of.ITEM_ERROR), item):
            asked.error = _meant(w, Of.ITEM_ERROR, item, _ERRORS, _END, Error.RECORDED)
        if asked.error == Error.NONE:
            sound += 1
            _name_at(w, asked.key).batches += 1
        elif asked.error == Error.RECORDED:
            asked.text = w.named_count
            _named_at(w, w.named_count).row = item
            w.named_count += 1
    event = _event_at(w, e)
    event.total = event.count
    w.parts += event.count
    acks = _int(w, Of.ACKS, row, _UNKNOWN)
    if acks == -1:
        event.mode = Acks.DELAYED if sound > 0 else Acks.ALL_IN_ERROR
    elif acks == 0 or acks == 1:
        event.mode = Acks.AT_ONCE
    else:
        event.mode = Acks.INVALID
        for at in range(event.first, event.first + event.count):
            _asked_at(w, at).error = Error.INVALID_REQUIRED_ACKS


@rule
def _fetch(w: World, row: int) -> None:
    e = _request(w, row, Code.FETCH, _long(w, Of.WAIT, row, _UNKNOWN))
    event = _event_at(w, e)
    event.most = min(_long(w, Of.MOST, row, _UNBOUNDED), w.most)
    # Less than nothing is as soon had as nothing.
    event.least = max(_UNKNOWN, min(_long(w, Of.LEAST, row, _UNKNOWN), event.most))
    event.hard = flag_of(_column_at(w, Of.HARD), row)
    event.who = _int(w, Of.REPLICA, row, _UNKNOWN)
    follows = event.who >= 0
    if follows:
        event.mode = Reader.FOLLOWER
    elif _meant(w, Of.ISOLATION, row, _ISOLATIONS, _ERRORS, _ZERO) != 0:
        event.mode = Reader.COMMITTED
    else:
        event.mode = Reader.CONSUMER
    begin, end = _items(w, Of.PARTITIONS, row)
    for item in range(begin, end):
        offset, size = _long(w, Of.ITEM_FETCH_OFFSET, item, _UNKNOWN), _long(w, Of.ITEM_MOST, item, _UNBOUNDED)
        asked = _asked_at(w, _asks_item(w, e, item, offset, size))
        asked.epoch = _int(w, Of.ITEM_EPOCH, item, _UNKNOWN)
        if follows:
            asked.throttled = flag_of(_column_at(w, Of.ITEM_THROTTLED), item)
            event.marked |= asked.throttled
        elif _int(w, Of.ITEM_PREFERRED, item, _UNKNOWN) >= 0:
            # Nothing of it is read, as if it were throttled.
            asked.throttled, event.sent, event.marked = 1, 1, 1
    event.total = event.count
    w.parts += event.count
    if follows:
        w.nodes += event.count


@rule
def _delete(w: World, row: int) -> None:
    e = _request(w, row, Code.DELETE_RECORDS, _long(w, Of.TIMEOUT, row, _UNKNOWN))
    begin, end = _items(w, Of.PARTITIONS, row)
    for item in range(begin, end):
        _asks_item(w, e, item, _long(w, Of.ITEM_OFFSET, item, _UNKNOWN), _ZERO)
    _event_at(w, e).total = _event_at(w, e).count
    w.parts += _event_at(w, e).count


@rule
def _create(w: World, row: int) -> None:
    e = _request(w, row, Code.CREATE_TOPICS, _long(w, Of.TIMEOUT, row, _UNKNOWN))
    begin, end = _items(w, Of.TOPICS, row)
    for item in range(begin, end):
        key = _key(w, _ANYBODY, Of.NEW_TOPIC, item, _NO_PARTITION)
        _asks(w, e, key, _int(w, Of.NEW_PARTITIONS, item, _UNKNOWN), _ZERO)
    _event_at(w, e).total = _event_at(w, e).count
    w.parts += _event_at(w, e).count
    w.nodes += _event_at(w, e).count


@rule
def _change(w: World, row: int) -> None:
    """What happened to a replica; and what of it concerns its topic: which partitions are led, and where nobody waits
    for that any more."""
    code = _meant(w, Of.CHANGE, row, _CHANGES, _ISOLATIONS, _ZERO)
    e = _event(w, row, code)
    event = _event_at(w, e)
    leads = code == Code.LEADER
    event.who = _int(w, Of.MIN_ISR if leads else Of.REPLICA, row, _UNKNOWN)
    event.whole = _int(w, Of.BATCHES, row, _ZERO) == 1
    partition = _int(w, Of.PARTITION, row, _NO_PARTITION)
    key = _key(w, event.broker, Of.TOPIC, row, partition)
    event.key, event.offset, event.size = key, _long(w, Of.OFFSET, row, _UNKNOWN), _long(w, Of.BYTES, row, _ZERO)
    if code == Code.LOG_END:
        _name_at(w, key).batches += 1
    elif code == Code.SEGMENT_ROLL:
        _name_at(w, key).rolls += 1
    elif tells(code, event.mode):
        w.nodes += 1
    if leads or code == Code.ISR:
        event.told = w.told_count
        w.told_count += 1
        _tell(w, event.told, row)
    if leads or code in (Code.DELETED, Code.STOPPED):
        of_topic = _event(w, row, Code.LED if leads else Code.UNLED if code == Code.DELETED else Code.TOPIC_STOPPED)
        w.nodes += 1
        event = _event_at(w, of_topic)
        event.key, event.offset, event.size = _key(w, _ANYBODY, Of.TOPIC, row, _NO_PARTITION), partition, _ZERO


@inlined
def _tell(w: World, at: int, row: int) -> None:
    told = _told_at(w, at)
    told.epoch, told.first, told.members = _int(w, Of.EPOCH, row, _UNKNOWN), w.members, _UNKNOWN
    if known(_column_at(w, Of.ISR), row):
        begin, end = _items(w, Of.ISR, row)
        told.members = end - begin
        for item in range(begin, end):
            _member_at(w, w.members).replica = _int(w, Of.IN_SYNC, item, _UNKNOWN)
            w.members += 1
