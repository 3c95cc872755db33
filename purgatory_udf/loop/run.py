"""The loop: events in order of time. Before each, everything expires whose deadline is its millisecond or earlier."""

from __future__ import annotations

from purgatory_udf.loop import reaper
from purgatory_udf.loop.changes import change
from purgatory_udf.loop.compiled import entry, number
from purgatory_udf.loop.requests import create_topics, delete_records, fetch_messages, produce
from purgatory_udf.loop.tables import event_at
from purgatory_udf.loop.words import FOREVER, Code
from purgatory_udf.loop.world import Records

_PRODUCE, _FETCH, _DELETE, _CREATE = (
    number(Code.PRODUCE),
    number(Code.FETCH),
    number(Code.DELETE_RECORDS),
    number(Code.CREATE_TOPICS),
)


@entry
def run(world: Records, events: int, horizon_ms: int) -> None:
    """Apply the events, then expire what is due by the horizon; `FOREVER` lets the clock run out."""
    w = world[0]
    for e in range(events):
        event = event_at(w, e)
        code = event.code
        w.event += 1
        reaper.advance(w, event.t)
        if code == _FETCH:
            fetch_messages(w, e)
        elif code == _PRODUCE:
            produce(w, e)
        elif code == _DELETE:
            delete_records(w, e)
        elif code == _CREATE:
            create_topics(w, e)
        else:
            change(w, e)
    if horizon_ms >= FOREVER:
        reaper.run_out(w)
    else:
        reaper.advance(w, max(horizon_ms * 1000, w.now))
