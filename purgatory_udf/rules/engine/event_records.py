"""Parses events: Arrow columns to the engine's records, row by row, in compiled code.

A request becomes an event and a request part for each key that it names; a change becomes an event. Rows are parsed in
blocks, of each block first the changes, then the fetches, the produces, and the others. Events have the order of the
rows; parts and keys are numbered when they are parsed. `calls_from_events` provides the columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from purgatory_udf.common.configuration import INT32_MAX
from purgatory_udf.rules.engine.column_access import (
    COLUMN,
    WORD,
    Column,
    Vocabulary,
    addresses_of,
    bool_value,
    hash_string,
    int32_value,
    int64_value,
    is_valid,
    is_word,
    list_start,
    prefetch_rows,
    string_value,
    strings_equal,
    word_slot,
)
from purgatory_udf.rules.engine.jit import Int64Enum
from purgatory_udf.rules.engine.jit.code_cache import entry_point
from purgatory_udf.rules.engine.jit.compiled_functions import (
    helper,
    inlined,
    int64,
    load_int32,
    load_uint8,
)
from purgatory_udf.rules.engine.jit.records import Records, accessor, arena_dtype, record
from purgatory_udf.rules.engine.loop.arena import (
    EVENT,
    LEADER_AND_ISR,
    MEMBER,
    NONE,
    PURGATORY_KEY,
    REQUEST_PART,
    SILENT,
    Arena,
)
from purgatory_udf.rules.engine.loop.codes import (
    CHANGES,
    NO_PARTITION,
    REMOTE_EVENTS,
    REQUESTS,
    UNKNOWN,
    Acks,
    Code,
    Error,
    Reader,
)
from purgatory_udf.rules.engine.loop.engine_call import may_add_node, waits_in


class EventColumn(Int64Enum):
    """Indices of the columns that are parsed: of events, of the items in their lists, and of changes."""

    TIME, SEQ, BROKER, TYPE = 0, 1, 2, 3
    ACKS, REPLICA, TIMEOUT, MAX_WAIT, MIN_BYTES, MAX_BYTES, ISOLATION = 4, 5, 6, 7, 8, 9, 10
    PARTITIONS, TOPICS = 11, 12
    ITEM_TOPIC, ITEM_PARTITION, ITEM_LAST_OFFSET, ITEM_BYTES, ITEM_ERROR = 13, 14, 15, 16, 17
    ITEM_FETCH_OFFSET, ITEM_MAX_BYTES, ITEM_EPOCH, ITEM_THROTTLED, ITEM_OFFSET = 18, 19, 20, 21, 22
    NEW_TOPIC, NEW_PARTITIONS = 23, 24
    CHANGE, TOPIC, PARTITION, OFFSET, BYTES, EPOCH, ISR, IN_SYNC, MIN_ISR = 25, 26, 27, 28, 29, 30, 31, 32, 33
    HARD_MAX_BYTES, BATCHES, ITEM_PREFERRED_REPLICA = 34, 35, 36
    ITEM_TIMESTAMP, WAKE, ERROR, EXHAUSTED, FULL = 37, 38, 39, 40, 41


ROW, SLOT = record("row"), record("", "key")
# Code and event number of a row of the current block. The other fields list the block's rows by kind: the n-th record
# has the n-th change, fetch, produce, and other row.
BLOCK_ROW = record(i4="change fetch produce other event code", align=32)
# A topic that a recent row has named: address and length in one of these rows, and its hash.
TOPIC = record("text length hashed")
# A key: address and length of its topic in one of the rows that name it, its parsed batches and rolls, and the last
# event that named it.
KEY_NAME = record("topic", "length broker partition batches rolls last_event")

# The input (columns and vocabulary), the output, and the key names with a hash table of their numbers.
TABLES = {
    "columns": COLUMN,
    "words": WORD,
    "events": EVENT,
    "request_parts": REQUEST_PART,
    "leader_and_isr": LEADER_AND_ISR,
    "in_sync": MEMBER,
    "error_rows": ROW,
    "key_names": KEY_NAME,
    "slots": SLOT,
    "purgatory_keys": PURGATORY_KEY,
    "block_rows": BLOCK_ROW,
    "topics": TOPIC,
}
# Rows in use of these tables (`slots`: size of the hash table), and the operations (`request_count`), parts and nodes
# that the events can add to a state. `read_ends`: events that end a read or lookup in remote storage. `max_bytes`: the
# broker's limit of a fetch; `cap_min_bytes`: whether it limits `min_bytes` too. `list_offsets_ms`: the broker's timeout
# of list-offsets. `item_count`: items in all lists, which precede the rows in `error_rows`. `unordered`: some event is
# earlier than the one before it.
ARENA = arena_dtype(
    TABLES,
    *("event_count", "request_part_count", "leader_and_isr_count", "members"),
    *("request_count", "error_count", "keys", "purgatory_key_count"),
    *("slots", "parts", "nodes", "read_ends", "max_bytes", "unordered"),
    *("cap_min_bytes", "list_offsets_ms", "item_count"),
)

_column_at, _word_at, _event_at, _request_part_at, _leader_and_isr_at, _member_at = (
    accessor(name, TABLES, ARENA)
    for name in ("columns", "words", "events", "request_parts", "leader_and_isr", "in_sync")
)
_error_row_at, _name_at, _slot_at, _purgatory_key_at, _block_row_at, _topic_at = (
    accessor(name, TABLES, ARENA)
    for name in ("error_rows", "key_names", "slots", "purgatory_keys", "block_rows", "topics")
)

_UNKNOWN, _NO_PARTITION, _ANY_BROKER = map(int64, (UNKNOWN, NO_PARTITION, UNKNOWN))
_MIN_SLOTS = int64(1 << 8)
# Odd constants for 32-bit multiplicative hashing, so that a topic's partitions and brokers are spread evenly over the
# slots.
_PARTITION_FACTOR, _BROKER_FACTOR, _LOW_BITS = int64(0x9E3779B9), int64(0x91E10DA5), int64(2**32 - 1)
_ZERO, _UNBOUNDED, _EARLIEST = int64(0), int64(INT32_MAX), int64(-(1 << 63))

# With fewer requests than this, prefetching all rows of their columns costs more than it saves.
_MAX_ROWS_PER_REQUEST = int64(16)

_PARTITION = -1
WORDS = Vocabulary(
    [
        {"partition": _PARTITION}
        | {code.name.lower(): int(code) for code in REQUESTS}
        | {code.name.lower(): int(code) for code in REMOTE_EVENTS},
        {name: int(code) for name, code in CHANGES.items()},
        {"read_committed": 1},
        {error.name: int(error) for error in Error if error is not Error.RECORDED},
    ]
)
_TYPES, _CHANGES, _ISOLATIONS, _ERRORS = map(int64, range(4))
_FACTOR = int64(WORDS.factor)
# Codes of this number of rows are looked up before the rows are parsed, and then the rows of each kind are parsed
# together. The processor cannot predict the kind of the next row, and would have to wait for it in each row.
BLOCK = int64(1 << 11)
# Rows of the table of recent topics, in which each topic has one possible place.
TOPICS = int64(1 << 6)
BlockRow = Any  # a `BLOCK_ROW`


def _bits(codes: Iterable[Code]) -> int:
    return int64(sum(1 << int(code) for code in codes))


# Sets of codes, as bit masks. `_WITH_TOPIC`: changes that are also an event of the topic. `_SINGLE_CHANGES`: changes
# that `_change` parses completely.
_WITH_TOPIC = _bits((Code.LEADER, Code.DELETED, Code.STOPPED))
_KNOWN = _bits((*REQUESTS, *REMOTE_EVENTS, *CHANGES.values()))
_SINGLE_CHANGES = _bits({*CHANGES.values()} - {Code.LEADER, Code.DELETED, Code.STOPPED, Code.ISR, Code.LOCAL_LOG_START})
_OTHERS = _KNOWN & ~(_SINGLE_CHANGES | _bits((Code.PRODUCE, Code.FETCH)))


@entry_point
def parse_events(arenas: Records, begin: int, end: int) -> None:
    """Parse the rows from `begin` up to `end`. An arena can parse several ranges of rows, one after the other."""
    arena = arenas[0]
    _initialize(arena)
    for first in range(begin, end, BLOCK):
        last = min(first + BLOCK, end)
        _parse_block(arena, first, last)


@helper
def _initialize(arena: Arena) -> None:
    """Empty the hash tables, when the arena is first used."""
    if arena.slots == 0:
        _rehash(arena, min(_MIN_SLOTS, arena.slots_capacity))
        for slot in range(TOPICS):
            _topic_at(arena, slot).length = NONE


@helper
def _parse_block(arena: Arena, first: int, last: int) -> None:
    """Parse at most `BLOCK` rows. Events are numbered in the order of the rows."""
    first_event, purgatory_keys = arena.event_count, arena.purgatory_key_count
    _look_up_codes(arena, first, last)
    e = first_event
    changes = fetches = produces = others = _ZERO
    for row in range(first, last):
        this = _block_row_at(arena, row - first)
        code = this.code
        this.event = e
        e += _bit_of(_KNOWN, code) + _bit_of(_WITH_TOPIC, code)
        # Without branches: the row is written to the end of each list, and counted in the list of its kind.
        _block_row_at(arena, changes).change = row
        changes += _bit_of(_SINGLE_CHANGES, code)
        _block_row_at(arena, fetches).fetch = row
        fetches += code == Code.FETCH
        _block_row_at(arena, produces).produce = row
        produces += code == Code.PRODUCE
        _block_row_at(arena, others).other = row
        others += _bit_of(_OTHERS, code)
    _copy_times(arena, first, last)
    arena.event_count = e
    if _MAX_ROWS_PER_REQUEST * (fetches + produces) > last - first:
        _prefetch_requests(arena, first, last)
    for n in range(changes):
        row = _block_row_at(arena, n).change
        this = _block_row_at(arena, row - first)
        _change(arena, row, this.code, this.event)
    for n in range(fetches):
        row = _block_row_at(arena, n).fetch
        _fetch(arena, row, _block_row_at(arena, row - first))
    for n in range(produces):
        row = _block_row_at(arena, n).produce
        _produce(arena, row, _block_row_at(arena, row - first))
    for n in range(others):
        row = _block_row_at(arena, n).other
        _parse_other(arena, row, _block_row_at(arena, row - first))
    if arena.purgatory_key_count > purgatory_keys:
        _note_purgatories(arena, first_event, purgatory_keys)


@helper
def _look_up_codes(arena: Arena, first: int, last: int) -> None:
    """Look up the codes of at most `BLOCK` rows."""
    changes = _ZERO
    types, kinds = (
        addresses_of(_column_at(arena, EventColumn.TYPE)),
        addresses_of(_column_at(arena, EventColumn.CHANGE)),
    )
    for row in range(first, last):
        code = _number_of(arena, types, row, _TYPES, _ZERO)
        _block_row_at(arena, row - first).code = code
        _block_row_at(arena, changes).change = row
        changes += code == _PARTITION
    for n in range(changes):
        row = _block_row_at(arena, n).change
        _block_row_at(arena, row - first).code = _number_of(arena, kinds, row, _CHANGES, _ZERO)


@helper
def _prefetch_requests(arena: Arena, first: int, last: int) -> None:
    """Prefetch the columns that only requests have, and those of their partitions.

    Requests are some of the rows, so the processor does not recognize the pattern of its reads.
    """
    lists = _column_at(arena, EventColumn.PARTITIONS)
    begin = end = _ZERO
    if lists.values != 0:
        begin, end = list_start(lists, first), list_start(lists, last)
    for column in range(EventColumn.ACKS, EventColumn.TOPICS):
        prefetch_rows(_column_at(arena, column), first, last)
    if end - begin < 2 * (last - first):
        # With more items, the processor recognizes the pattern.
        for column in range(EventColumn.ITEM_TOPIC, EventColumn.NEW_TOPIC):
            prefetch_rows(_column_at(arena, column), begin, end)


@inlined
def _bit_of(codes: int, code: int) -> int:
    return (codes >> code) & 1


@helper
def _note_purgatories(arena: Arena, first_event: int, known: int) -> None:
    """Record the purgatories of the events from `first_event` on again, in the order of the events.

    `known` is the number of purgatories that earlier events need.
    """
    arena.purgatory_key_count = known
    for e in range(first_event, arena.event_count):
        event = _event_at(arena, e)
        _note_purgatory(arena, waits_in(event.code), event.broker)


@helper
def _copy_times(arena: Arena, first: int, last: int) -> None:
    """Copy `time_us` and `seq` to the events of the rows, and note whether an event is earlier than the one before it.

    The values of a row that is no event are overwritten by the next one.
    """
    unordered, before, seq_before = _ZERO, _EARLIEST, _EARLIEST
    if arena.event_count > 0:
        earlier = _event_at(arena, arena.event_count - 1)
        before, seq_before = earlier.t, earlier.seq
    times, seqs = addresses_of(_column_at(arena, EventColumn.TIME)), addresses_of(_column_at(arena, EventColumn.SEQ))
    for row in range(first, last):
        time, seq = int64_value(times, row, _UNKNOWN), int64_value(seqs, row, _UNKNOWN)
        event = _event_at(arena, _block_row_at(arena, row - first).event)
        event.t, event.seq = time, seq
        # Without branches: many events have the time of the one before.
        unordered |= (before > time) | ((before == time) & (seq_before > seq))
        before, seq_before = time, seq
    if unordered != 0:
        arena.unordered = 1


@helper
def _parse_other(arena: Arena, row: int, this: BlockRow) -> None:
    """Parse a row of one of the rare kinds (`_OTHERS`)."""
    code = this.code
    if code == Code.DELETE_RECORDS:
        _delete(arena, row, this)
    elif code == Code.CREATE_TOPICS:
        _create(arena, row, this)
    elif code == Code.LIST_OFFSETS:
        _list_offsets(arena, row, this)
    elif code == Code.REMOTE_READ or code == Code.REMOTE_LOOKUP:
        _end_of_read(arena, row, this)
    elif code == Code.REMOTE_QUOTA or code == Code.READER_QUEUE:
        _change_of_broker(arena, row, code, this.event)
    else:
        _rare_change(arena, row, code, this.event)


@inlined
def _long(arena: Arena, column: int, row: int, absent: int) -> int:
    return int64_value(_column_at(arena, column), row, absent)


@inlined
def _int(arena: Arena, column: int, row: int, absent: int) -> int:
    return int32_value(_column_at(arena, column), row, absent)


@inlined
def _lookup(arena: Arena, column: int, row: int, group: int, other: int) -> int:
    """Look up the string in a row of a column among the words of a group.

    Return the word's number, or `other` if the group does not have the string.
    """
    return _number_of(arena, _column_at(arena, column), row, group, other)


@inlined
def _number_of(arena: Arena, strings: Column, row: int, group: int, other: int) -> int:
    """Do the same as `_lookup` for a column, or for its `Addresses`."""
    text, length = string_value(strings, row)
    if length == 0 and text + 1 > strings.limit:
        return other
    word = _word_at(arena, word_slot(_FACTOR, text, length))
    return word.number if is_word(word, text, length, strings.limit) and word.group == group else other


@inlined
def _key(arena: Arena, broker: int, column: int, row: int, partition: int) -> int:
    """Return the number of a key, which is added if it is new. Its topic is the string in `row` of `column`."""
    text, length = string_value(_column_at(arena, column), row)
    return _number_key(arena, broker, text, length, partition)


@inlined
def _number_key(arena: Arena, broker: int, text: int, length: int, partition: int) -> int:
    """Return the number of a key, which is added if it is new. `text` is the address of its topic."""
    topic = _topic_at(arena, _topic_slot(text, length))
    if topic.length != length or not strings_equal(topic.text, text, length):
        topic.text, topic.length, topic.hashed = text, length, hash_string(text, length)
    slot = _first_slot(arena, broker, topic.hashed, partition)
    while True:
        key = _slot_at(arena, slot).key
        if key == NONE:
            return _new_key(arena, slot, broker, topic.text, length, partition)
        name = _name_at(arena, key)
        if (
            name.partition == partition
            and name.broker == broker
            and name.length == length
            and (name.topic == topic.text or strings_equal(name.topic, text, length))
        ):
            return key
        slot = (slot + 1) & (arena.slots - 1)


@entry_point
def count_rare_changes(columns: Records, end: int) -> tuple[int, int]:
    """Count changes among the first `end` rows: at most how many have a row in `leader_and_isr`, and a second event.

    A second event is of the topic (`_WITH_TOPIC`). Only lengths and first bytes are compared: isr, leader, deleted,
    stopped.
    """
    leaders = isrs = others = _ZERO
    changes = addresses_of(columns[EventColumn.CHANGE])
    if changes.limit > changes.base:
        stop = load_int32(changes.values, changes.offset)
        for row in range(end):
            begin, stop = stop, load_int32(changes.values, changes.offset + row + 1)
            length, initial = stop - begin, load_uint8(min(changes.base + begin, changes.limit - 1), 0)
            # Without branches: the next change is unpredictable.
            isrs += length == 3
            leaders += (length == 6) & (initial == _L)
            others += (length == 7) & ((initial == _D) | (initial == _S))
    return isrs + leaders, leaders + others


_D, _L, _S = map(int64, b"dls")


@entry_point
def number_keys(arenas: Records, names: Records, numbers: Records) -> None:
    """Fill `numbers` with the keys' numbers in an arena, to which new keys are added.

    `names` are the rows of `key_names` of another arena.
    """
    arena = arenas[0]
    _initialize(arena)
    for k in range(len(names)):
        name = names[k]
        numbers[k] = _number_key(arena, name.broker, name.topic, name.length, name.partition)


@inlined
def _topic_slot(text: int, length: int) -> int:
    return 0 if length == 0 else (length + 5 * load_uint8(text, length - 1) + load_uint8(text, length >> 1)) % TOPICS


@helper
def _new_key(arena: Arena, slot: int, broker: int, topic: int, length: int, partition: int) -> int:
    """Add a key at a free slot of the hash table; return its number."""
    key = arena.keys
    arena.keys += 1
    _slot_at(arena, slot).key = key
    name = _name_at(arena, key)
    name.broker, name.topic, name.length, name.partition = broker, topic, length, partition
    name.batches, name.rolls, name.last_event = 0, 0, NONE
    if 2 * arena.keys > arena.slots:
        _rehash(arena, 2 * arena.slots)
    return key


@inlined
def _first_slot(arena: Arena, broker: int, topic_hash: int, partition: int) -> int:
    hashed = 2 * topic_hash + broker * _BROKER_FACTOR + partition * _PARTITION_FACTOR
    return (hashed & _LOW_BITS) * arena.slots >> 32


@helper
def _rehash(arena: Arena, slots: int) -> None:
    """Resize the hash table of keys to `slots` slots. A small table stays in the processor's cache."""
    arena.slots = slots
    for slot in range(slots):
        _slot_at(arena, slot).key = NONE
    for key in range(arena.keys):
        name = _name_at(arena, key)
        slot = _first_slot(arena, name.broker, hash_string(name.topic, name.length), name.partition)
        while _slot_at(arena, slot).key != NONE:
            slot = (slot + 1) & (slots - 1)
        _slot_at(arena, slot).key = key


@inlined
def _fill_event(arena: Arena, row: int, code: int, e: int) -> None:
    """Fill the fields of event `e` that requests and changes have, except for `t` and `seq`."""
    event = _event_at(arena, e)
    event.broker, event.code, event.replica_id = _int(arena, EventColumn.BROKER, row, _ZERO), code, UNKNOWN
    event.mode, event.hard_max, event.single_batch, event.redirected = 0, 0, 0, 0
    event.count, event.total, event.text, event.split = 0, 0, _UNKNOWN, 0


@inlined
def _add_part(arena: Arena, e: int, key: int, offset: int, size: int) -> int:
    """Add a part to request `e` for a key that it names; return the part's number."""
    a = arena.request_part_count
    arena.request_part_count += 1
    event, part = _event_at(arena, e), _request_part_at(arena, a)
    part.offset, part.size, part.key, part.ordinal = offset, size, key, event.count
    part.epoch, part.error, part.throttled, part.queue, part.duplicate = UNKNOWN, 0, 0, NONE, 0
    # A request is on the watcher list of a key once, even if it names the key twice.
    name = _name_at(arena, key)
    if name.last_event == e:
        part.duplicate, event.irregular = 1, 1
    name.last_event = e
    event.count += 1
    return a


@inlined
def _fill_request(arena: Arena, row: int, this: BlockRow, code: int, delay: int) -> int:
    """Fill the event of a request, or of the end of a read, and record the purgatory that it needs.

    `delay` is the request's timeout or maximum wait in milliseconds. Return the event's number.
    """
    e = int64(this.event)
    _fill_event(arena, row, code, e)
    event = _event_at(arena, e)
    event.delay, event.min_bytes, event.max_bytes = delay, 0, 0
    event.first, event.text = arena.request_part_count, row
    arena.request_count += 1
    _note_purgatory(arena, waits_in(code), event.broker)
    return e


@inlined
def _note_purgatory(arena: Arena, code: int, broker: int) -> None:
    """Record that the broker has a purgatory of this kind. Does nothing if the code is 0."""
    at = 0
    while at < arena.purgatory_key_count and (
        _purgatory_key_at(arena, at).code != code or _purgatory_key_at(arena, at).broker != broker
    ):
        at += 1
    if at == arena.purgatory_key_count and code != 0:
        _purgatory_key_at(arena, at).code, _purgatory_key_at(arena, at).broker = code, broker
        arena.purgatory_key_count += 1


@inlined
def _items(arena: Arena, lists: int, row: int) -> tuple[int, int]:
    """Return the range of the row's items in column `lists`, as begin and end; (0, 0) if the row is null."""
    column = _column_at(arena, lists)
    if not is_valid(column, row):
        return 0, 0
    return list_start(column, row), list_start(column, row + 1)


@inlined
def _add_item(arena: Arena, e: int, item: int, offset: int, size: int) -> int:
    """Add a part to request `e` for the partition that the list item names; return the part's number."""
    partition = _int(arena, EventColumn.ITEM_PARTITION, item, _NO_PARTITION)
    key = _key(arena, _event_at(arena, e).broker, EventColumn.ITEM_TOPIC, item, partition)
    return _add_part(arena, e, key, offset, size)


@helper
def _produce(arena: Arena, row: int, this: BlockRow) -> None:
    e = _fill_request(arena, row, this, Code.PRODUCE, _long(arena, EventColumn.TIMEOUT, row, _UNKNOWN))
    begin, end = _items(arena, EventColumn.PARTITIONS, row)
    appended = 0
    for item in range(begin, end):
        offset = _long(arena, EventColumn.ITEM_LAST_OFFSET, item, _UNKNOWN) + 1
        size = _long(arena, EventColumn.ITEM_BYTES, item, _ZERO)
        part = _request_part_at(arena, _add_item(arena, e, item, offset, size))
        if is_valid(_column_at(arena, EventColumn.ITEM_ERROR), item):
            part.error = _lookup(arena, EventColumn.ITEM_ERROR, item, _ERRORS, Error.RECORDED)
        if part.error == Error.NONE:
            appended += 1
            _name_at(arena, part.key).batches += 1
        elif part.error == Error.RECORDED:
            part.text = arena.error_count
            _error_row_at(arena, arena.error_count).row = item
            arena.error_count += 1
    event = _event_at(arena, e)
    event.total = event.count
    arena.parts += event.count
    acks = _int(arena, EventColumn.ACKS, row, _UNKNOWN)
    if acks == -1:
        event.mode = Acks.DELAYED if appended > 0 else Acks.ALL_IN_ERROR
    elif acks == 0 or acks == 1:
        event.mode = Acks.AT_ONCE
    else:
        event.mode = Acks.INVALID
        for at in range(event.first, event.first + event.count):
            _request_part_at(arena, at).error = Error.INVALID_REQUIRED_ACKS


@helper
def _fetch(arena: Arena, row: int, this: BlockRow) -> None:
    e = _fill_request(arena, row, this, Code.FETCH, _long(arena, EventColumn.MAX_WAIT, row, _UNKNOWN))
    event = _event_at(arena, e)
    event.max_bytes = min(_long(arena, EventColumn.MAX_BYTES, row, _UNBOUNDED), arena.max_bytes)
    # Negative numbers all mean that no byte is required.
    most = event.max_bytes if arena.cap_min_bytes != 0 else _UNBOUNDED
    event.min_bytes = max(_UNKNOWN, min(_long(arena, EventColumn.MIN_BYTES, row, _UNKNOWN), most))
    event.hard_max = bool_value(_column_at(arena, EventColumn.HARD_MAX_BYTES), row)
    event.replica_id = _int(arena, EventColumn.REPLICA, row, _UNKNOWN)
    is_follower = event.replica_id >= 0
    if is_follower:
        event.mode = Reader.FOLLOWER
    elif _lookup(arena, EventColumn.ISOLATION, row, _ISOLATIONS, _ZERO) != 0:
        event.mode = Reader.COMMITTED
    else:
        event.mode = Reader.CONSUMER
    begin, end = _items(arena, EventColumn.PARTITIONS, row)
    for item in range(begin, end):
        offset = _long(arena, EventColumn.ITEM_FETCH_OFFSET, item, _UNKNOWN)
        size = _long(arena, EventColumn.ITEM_MAX_BYTES, item, _UNBOUNDED)
        part = _request_part_at(arena, _add_item(arena, e, item, offset, size))
        part.epoch = _int(arena, EventColumn.ITEM_EPOCH, item, _UNKNOWN)
        if is_follower:
            part.throttled = bool_value(_column_at(arena, EventColumn.ITEM_THROTTLED), item)
            event.irregular |= part.throttled
        elif _int(arena, EventColumn.ITEM_PREFERRED_REPLICA, item, _UNKNOWN) >= 0:
            # Nothing of it is read, as of a throttled partition.
            part.throttled, event.redirected, event.irregular = 1, 1, 1
    event.total = event.count
    arena.parts += event.count
    if is_follower:
        arena.nodes += event.count


@helper
def _delete(arena: Arena, row: int, this: BlockRow) -> None:
    e = _fill_request(arena, row, this, Code.DELETE_RECORDS, _long(arena, EventColumn.TIMEOUT, row, _UNKNOWN))
    begin, end = _items(arena, EventColumn.PARTITIONS, row)
    for item in range(begin, end):
        _add_item(arena, e, item, _long(arena, EventColumn.ITEM_OFFSET, item, _UNKNOWN), _ZERO)
    _event_at(arena, e).total = _event_at(arena, e).count
    arena.parts += _event_at(arena, e).count


@helper
def _create(arena: Arena, row: int, this: BlockRow) -> None:
    e = _fill_request(arena, row, this, Code.CREATE_TOPICS, _long(arena, EventColumn.TIMEOUT, row, _UNKNOWN))
    begin, end = _items(arena, EventColumn.TOPICS, row)
    for item in range(begin, end):
        key = _key(arena, _ANY_BROKER, EventColumn.NEW_TOPIC, item, _NO_PARTITION)
        _add_part(arena, e, key, _int(arena, EventColumn.NEW_PARTITIONS, item, _UNKNOWN), _ZERO)
    _event_at(arena, e).total = _event_at(arena, e).count
    arena.parts += _event_at(arena, e).count
    arena.nodes += _event_at(arena, e).count


@helper
def _list_offsets(arena: Arena, row: int, this: BlockRow) -> None:
    timeout = _long(arena, EventColumn.TIMEOUT, row, _ZERO)
    e = _fill_request(arena, row, this, Code.LIST_OFFSETS, timeout if timeout > 0 else arena.list_offsets_ms)
    begin, end = _items(arena, EventColumn.PARTITIONS, row)
    for item in range(begin, end):
        _add_item(arena, e, item, _long(arena, EventColumn.ITEM_TIMESTAMP, item, _UNKNOWN), _ZERO)
    event = _event_at(arena, e)
    event.total = event.count
    arena.parts += event.count
    arena.nodes += event.count


@helper
def _end_of_read(arena: Arena, row: int, this: BlockRow) -> None:
    """Parse the end of a read or lookup in remote storage: an event with one part."""
    e = _fill_request(arena, row, this, this.code, _ZERO)
    arena.read_ends += 1
    event = _event_at(arena, e)
    partition = _int(arena, EventColumn.PARTITION, row, _NO_PARTITION)
    key = _key(arena, event.broker, EventColumn.TOPIC, row, partition)
    part = _request_part_at(arena, _add_part(arena, e, key, _UNKNOWN, _long(arena, EventColumn.BYTES, row, _ZERO)))
    event.total = event.count
    if is_valid(_column_at(arena, EventColumn.ERROR), row):
        part.error = _lookup(arena, EventColumn.ERROR, row, _ERRORS, Error.RECORDED)
    if part.error == Error.RECORDED:
        part.text = arena.error_count
        _error_row_at(arena, arena.error_count).row = arena.item_count + row
        arena.error_count += 1


@helper
def _change_of_broker(arena: Arena, row: int, code: int, e: int) -> None:
    """Parse a change of the broker's limits on reads of remote storage."""
    _fill_event(arena, row, code, e)
    event = _event_at(arena, e)
    _note_purgatory(arena, waits_in(code), event.broker)
    # The row has no topic.
    event.key = _key(arena, event.broker, EventColumn.TOPIC, row, _NO_PARTITION)
    column = EventColumn.EXHAUSTED if code == Code.REMOTE_QUOTA else EventColumn.FULL
    event.offset, event.size = bool_value(_column_at(arena, column), row), _ZERO


@inlined
def _change(arena: Arena, row: int, code: int, e: int) -> None:
    """Parse the fields that all changes of replicas have, as event `e`."""
    _fill_event(arena, row, code, e)
    event = _event_at(arena, e)
    event.replica_id = _int(arena, EventColumn.REPLICA, row, _UNKNOWN)
    event.single_batch = _int(arena, EventColumn.BATCHES, row, _ZERO) == 1
    partition = _int(arena, EventColumn.PARTITION, row, _NO_PARTITION)
    key = _key(arena, event.broker, EventColumn.TOPIC, row, partition)
    event.key = key
    event.offset = _long(arena, EventColumn.OFFSET, row, _UNKNOWN)
    event.size = _long(arena, EventColumn.BYTES, row, _ZERO)
    name = _name_at(arena, key)
    name.batches += code == Code.LOG_END
    name.rolls += code == Code.SEGMENT_ROLL
    arena.nodes += may_add_node(code, _ZERO)
    if is_valid(_column_at(arena, EventColumn.WAKE), row) and not bool_value(_column_at(arena, EventColumn.WAKE), row):
        event.mode = SILENT


@helper
def _rare_change(arena: Arena, row: int, code: int, e: int) -> None:
    """Parse a change that has a leader epoch, an in-sync set or a purgatory.

    A new leader, a deletion and a stop are also an event of the topic.
    """
    _change(arena, row, code, e)
    event = _event_at(arena, e)
    leads = code == Code.LEADER
    if leads:
        event.replica_id = _int(arena, EventColumn.MIN_ISR, row, _UNKNOWN)
    if code == Code.LOCAL_LOG_START:
        _note_purgatory(arena, waits_in(code), event.broker)
    if leads or code == Code.ISR:
        event.leader_and_isr = arena.leader_and_isr_count
        arena.leader_and_isr_count += 1
        _add_leader_and_isr(arena, event.leader_and_isr, row)
    if _bit_of(_WITH_TOPIC, code) != 0:
        topic_code = Code.LED if leads else Code.UNLED if code == Code.DELETED else Code.TOPIC_STOPPED
        _fill_event(arena, row, topic_code, e + 1)
        of_topic = _event_at(arena, e + 1)
        of_topic.t, of_topic.seq = event.t, event.seq
        arena.nodes += 1
        of_topic.key = _key(arena, _ANY_BROKER, EventColumn.TOPIC, row, _NO_PARTITION)
        of_topic.offset, of_topic.size = _int(arena, EventColumn.PARTITION, row, _NO_PARTITION), _ZERO


@inlined
def _add_leader_and_isr(arena: Arena, at: int, row: int) -> None:
    leader_and_isr = _leader_and_isr_at(arena, at)
    leader_and_isr.epoch = _int(arena, EventColumn.EPOCH, row, _UNKNOWN)
    leader_and_isr.first, leader_and_isr.members = arena.members, _UNKNOWN
    if is_valid(_column_at(arena, EventColumn.ISR), row):
        begin, end = _items(arena, EventColumn.ISR, row)
        leader_and_isr.members = end - begin
        for item in range(begin, end):
            _member_at(arena, arena.members).replica = _int(arena, EventColumn.IN_SYNC, item, _UNKNOWN)
            arena.members += 1
