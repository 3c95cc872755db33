"""The loop: events in order of time. Before each, everything expires whose deadline is its millisecond or earlier."""

from __future__ import annotations

from purgatory_udf.compiling.compiled import entry, inlined
from purgatory_udf.compiling.records import Records
from purgatory_udf.loop import changes, reaper
from purgatory_udf.loop.requests import create_topics, delete_records, fetch_messages, produce
from purgatory_udf.loop.tables import World, event_at, event_soon, key_soon, place_at
from purgatory_udf.loop.words import FOREVER, Code

# How many events ahead of their turn keys are brought near, and how many the events themselves; and how many keys are
# near anyhow.
_AHEAD, _FURTHER_AHEAD, _FEW = 6, 24, 128


@inlined
def _bring_near(w: World, e: int, last_name: int) -> None:
    """A change's key. Of a request some key or other: to ask which it is costs more than to bring one near in vain."""
    event_soon(w, e + _FURTHER_AHEAD)
    key_soon(w, place_at(w, min(event_at(w, e).key, last_name)).key)


@entry
def run(world: Records, events: int, horizon_ms: int) -> None:
    """Apply the events, then expire what is due by the horizon; `FOREVER` lets the clock run out."""
    w = world[0]
    last_name = w.places_room - 1
    near_until = events - _AHEAD if w.keys_room > _FEW and last_name >= 0 else 0
    for e in range(events):
        if e < near_until:
            _bring_near(w, e + _AHEAD, last_name)
        event = event_at(w, e)
        code = event.code
        reaper.advance(w, event.t)
        # Where this leads to cannot be foreseen, so it is asked once.
        if code == Code.FETCH:
            fetch_messages(w, e)
        elif code == Code.PRODUCE:
            produce(w, e)
        elif code == Code.LOG_END:
            changes.log_end(w, e)
        elif code == Code.HIGH_WATERMARK:
            changes.high_watermark(w, e)
        elif code == Code.LAST_STABLE:
            changes.last_stable(w, e)
        elif code == Code.REPLICA_END:
            changes.replica_end(w, e)
        elif code == Code.DELETE_RECORDS:
            delete_records(w, e)
        elif code == Code.CREATE_TOPICS:
            create_topics(w, e)
        else:
            changes.rarer(w, e)
    if horizon_ms >= FOREVER:
        reaper.run_out(w)
    else:
        reaper.advance(w, max(horizon_ms * 1000, w.now))
