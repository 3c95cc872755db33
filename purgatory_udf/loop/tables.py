"""How the loop finds its records: `part_at(w, 7)`."""

from __future__ import annotations

from functools import partial

from purgatory_udf.compiling import access
from purgatory_udf.compiling.access import World, copies, inside, soon
from purgatory_udf.loop.world import ASKED, END, EVENT, KEY, OPERATION, PART, TABLES, WORLD

__all__ = ["World"]

_at = partial(access.access, kinds=TABLES, world=WORLD)
world_of = partial(access.world_of, kinds=TABLES, world=WORLD)

event_at = _at("events")
asked_at = _at("asked")
told_at = _at("told")
place_at = _at("places")
key_at = _at("keys")
batch_at = _at("batches")
roll_at = _at("rolls")
node_at = _at("nodes")
member_at = _at("in_sync")
operation_at = _at("operations")
part_at = _at("parts")
root_at = _at("roots")
link_at = _at("links")
purgatory_at = _at("purgatories")
queued_at = _at("queued")
turn_at = _at("turns")
ended_at = _at("ended")
reading_at = _at("readings")

# Memory that is written for the first time is far away, and so are keys that nothing has happened to for a while.
event_soon, batch_soon, operation_soon, part_soon, key_soon = (
    soon(name, TABLES, WORLD) for name in ("events", "batches", "operations", "parts", "keys")
)

# Up to where a kind of reader may read.
end_of = inside(KEY, END, begin="end")

take_event = copies(EVENT, OPERATION)
take_asked = copies(ASKED, PART)
