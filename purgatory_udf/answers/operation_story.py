"""The story of an operation as text: its arrival, its watched keys, the events on them, and the reason for its end.

fetch r-812 of billing at broker 1 (operation 812): completed after 42 ms
  09:00:01.200310  arrived from a consumer: at least 1,000 bytes within 500 ms, of orders-0 from offset 118, …
                   had to wait, at most until 09:00:01.700000: watched on orders-0, orders-1, orders-2
                   during the wait on orders-0: 3 × an append, 2 × a fetch of replica 2, a fetch of replica 3
  09:00:01.242977  min_bytes: the requested minimum of bytes was readable (1,204 bytes)
                   decided on orders-0 by a fetch of replica 3 (f-977)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from purgatory_udf.answers.evidence import DELAYED_REQUESTS, Evidence, PartitionEvents, Place
from purgatory_udf.common.console import request_label

Row = Mapping[str, Any]

# The meaning of each value of `completed_by`.
_SHARED = {
    "not_leader": "the broker no longer led the partition",
    "unknown_partition": "the partition had been deleted",
    "offline": "the partition's log directory was offline",
    "empty": "the request was empty",
    "broker_stopped": "the broker stopped before it responded",
    "unloaded": "the broker had unloaded the group, which has another coordinator now",
    "left": "the member left the group",
    "leave_group": "the member left the group",
    "fenced": "the coordinator removed the member, because of another deadline that it missed",
    "replaced": "another member took over its instance id",
    "converted": "the group changed to the other group protocol",
}

_RULES = {
    "produce": {
        "high_watermark": "every in-sync replica had its records: the high watermark had passed them",
        "not_enough_replicas": "its records were replicated, but to fewer replicas than min.insync.replicas",
        "acks": "acks=0 or 1 waits for no replica",
        "invalid_acks": "the value of acks is invalid",
        "append_error": "none of its partitions could be appended to",
    },
    "fetch": {
        "min_bytes": "the requested minimum of bytes was readable",
        "preferred_replica": "the consumer was redirected to a closer replica",
        "truncated": "the log had been truncated below its offset (case C)",
        "older_segment": "its offset was in an older segment than the end of the log (case C)",
        "fenced_epoch": "its leader epoch was older than the broker's",
        "unknown_epoch": "its leader epoch was newer than the broker's",
        "offset_out_of_range": "its offset was outside the log",
        "no_partitions": "the request had no partitions",
        "tiered_offset": "its offset is only in remote storage, from which a follower does not fetch",
        "no_wait": "its maximum wait allowed no wait",
    },
    "remote_fetch": {"remote_reads": "its reads of remote storage had ended"},
    "list_offsets": {
        "no_lookup": "it needed no lookup in remote storage, or none could begin",
        "remote_lookup": "its lookups in remote storage had ended",
    },
    "share_fetch": {
        "min_bytes": "records could be acquired, and the requested minimum of bytes was readable",
        "read_error": "a read of its partitions failed",
        "truncated": "the log had been truncated below its offset",
        "older_segment": "its offset was in an older segment than the high watermark",
        "no_partitions": "the request had no partitions",
        "no_records": "the request wanted no records",
        "partition_errors": "each of its partitions had an error",
        "remote_reads": "its reads of remote storage had ended",
        "reader_queue_full": "the broker could not start its reads of remote storage, as the queue of reads was full",
        "session_error": "its share session was unknown, or had another epoch",
        "session_limit": "the broker had too many share sessions, which it answers after the maximum wait",
    },
    "delete_records": {"low_watermark": "the low watermark had reached the requested offset"},
    "create_topics": {
        "leaders": "every partition of its topics had a leader",
        "no_wait": "its timeout allowed no wait",
    },
    "heartbeat": {
        "heartbeat": "the member sent its next heartbeat",
        "offset_commit": "the member committed offsets",
        "join_group": "the member joined again",
        "sync_group": "the member requested its assignment",
        "leave_group": "the member left",
        "new_generation": "a new generation started a new session",
        "assignment": "the member got its assignment, which started a new session",
        "awaiting_join": "the member waits in a join, which has no session",
        "awaiting_sync": "the member waits for its assignment, which has no session",
        "group_loaded": "the broker loaded the group, which started a new session",
        "group_unloaded": "the broker unloaded the group, which has another coordinator now",
        "group_stopped": "the coordinator of the group stopped before it responded",
        "replaced": "another member took over its instance id",
        "removed": "the member was removed from the group",
    },
    "join": {"all_joined": "every member had joined", "no_members": "no member was left"},
    "initial_join": {"no_members": "no member was left"},
    "sync": {
        "rebalance": "another rebalance started",
        "all_synced": "the leader's assignment had arrived, and every member had requested it",
    },
    "session": {
        "consumer_group_heartbeat": "the member sent its next heartbeat",
        "heartbeat": "the member sent its next heartbeat",
        "join_group": "the member joined again",
        "sync_group": "the member requested its assignment",
    },
    "reconciliation": {
        "revoked": "the member had given the partitions up, or had to give up others",
        "left_epoch": "the member had reached another epoch",
    },
}


def meaning(kind: str, rule: str) -> str:
    """Return the reason why an operation ended as text; `rule` is its `completed_by`.

    A rule without a text is returned with spaces instead of underscores.
    """
    return _RULES.get(kind, {}).get(rule) or _SHARED.get(rule) or rule.replace("_", " ")


# Names of events on a partition, by their code.
EVENT_NAMES = {
    "produce": "an append",
    "fetch": "a follower's fetch",
    "log_end": "an append",
    "high_watermark": "a new high watermark",
    "last_stable": "a new last stable offset",
    "log_start": "a new log start",
    "segment_roll": "a new segment",
    "truncate": "a truncation",
    "leader": "a leader election",
    "isr": "a change of the in-sync set",
    "replica_end": "a follower's progress",
    "throttled": "a replication quota",
    "unthrottled": "the end of a replication quota",
    "online": "the partition coming online",
    "not_leader": "the loss of leadership",
    "offline": "a failed log directory",
    "deleted": "the partition's deletion",
    "stopped": "the broker's stop",
    "local_log_start": "a new local log start",
    "follower": "the loss of leadership",
    "none": "a check",
    "remote_read": "the end of a remote read",
    "remote_lookup": "the end of a remote lookup",
}


PENDING = "REQUEST_TIMED_OUT"
# A broker is late if a recorded wait exceeds its deadline by more milliseconds. The reaper of a purgatory wakes up
# every 200 ms, and the timer of a loaded broker is late by tens of milliseconds.
LATE_MS = 250
STOPPED = "broker_stopped"
_CANCELLED = (STOPPED, "converted")
# Maximum number of partitions and names in a list.
SHOWN = 5
_INDENT = " " * 17


def story(evidence: Evidence) -> list[str]:
    """Return the story of an operation as lines; the first one is the title."""
    end, request = evidence.end, evidence.request
    if end is None:
        assert request is not None
        state = (
            "still open: not completed, expired or cancelled"
            if request["type"] in DELAYED_REQUESTS
            else "no operation of this request has ended: it was answered at once, or still waits"
        )
        lines = [f"{moment(request['time_us'])}  {_arrived(request)}", f"{_INDENT}{state}"]
        return [
            f"{_operation(request['type'], request)} (operation {request['seq']})",
            *_in(lines),
        ]
    how = "expired" if end["expired"] else "cancelled" if end["completed_by"] in _CANCELLED else "completed"
    title = f"{_operation(end['kind'], end)} (operation {end['operation_id']}): {how} {_after(end)}"
    return [title, *_in([*_beginning(evidence, end), *_during_wait(evidence), *_ending(evidence, end)])]


def moment(time_us: int) -> str:
    """Return the time of day (UTC) with microseconds."""
    return f"{datetime.fromtimestamp(time_us // 1_000_000, UTC):%H:%M:%S}.{time_us % 1_000_000:06}"


def _in(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _operation(kind: str, row: Row) -> str:
    """Return kind, request, client and broker of an operation, and its line if it comes from a request log."""
    request_id, broker = row["request_id"] or "", row["broker"] or 0
    label = request_label(request_id)
    if label == request_id:
        return f"{kind} {_of(row)} at broker {broker}"
    client = f" of {row['client_id']}" if row["client_id"] else ""
    return f"{kind}{client} at broker {broker}, {label}"


def _of(row: Row) -> str:
    """Return the words that identify an operation: request id and client, or the key if there is no request id."""
    request = row["request_id"] or ""
    client = f"of {row['client_id']}" if row["client_id"] else ""
    key = "" if request or "key" not in row or not row["key"] else f"on {row['key']}"
    return " ".join(filter(None, [request, client, key])) or "without a request id"


def _after(end: Row) -> str:
    return f"after {end['wait_ms']:,} ms" if end["watched"] else "on arrival"


def _beginning(evidence: Evidence, end: Row) -> Iterator[str]:
    arrival = _arrived(evidence.request) if evidence.request else "started"
    yield f"{moment(end['started_us'])}  {arrival}"
    if not end["watched"]:
        return
    keys = [_name(watch["topic"], watch["partition"]) for watch in evidence.watches] or [str(end["key"])]
    yield f"{_INDENT}had to wait, at most until {moment(end['deadline_us'])}: watched on {_some(keys)}"


def _arrived(request: Row) -> str:
    parts = request["partitions"] or []
    match request["type"]:
        case "produce":
            batches = [
                f"{_name(part['topic'], part['partition'])} ({_offsets(part)})"
                if (part["error"] or "NONE") == "NONE"
                else f"{_name(part['topic'], part['partition'])} ({part['error']})"
                for part in parts
            ]
            return (
                f"arrived: acks={request['acks']}, may wait {request['timeout_ms']:,} ms, appended to {_some(batches)}"
            )
        case "fetch":
            reader = f"follower {request['replica_id']}" if (request["replica_id"] or 0) >= 0 else "consumer"
            froms = [f"{_name(part['topic'], part['partition'])} from offset {part['fetch_offset']}" for part in parts]
            least = f"at least {request['min_bytes']:,} bytes within {request['max_wait_ms']:,} ms"
            return f"arrived from a {reader}: {least}, of {_some(froms)}"
        case "share_fetch":
            names = [_name(part["topic"], part["partition"]) for part in parts]
            least = f"at least {request['min_bytes']:,} bytes within {request['max_wait_ms']:,} ms"
            member = f"member {request['member_id']} of share group {request['group']}"
            return f"arrived from {member}: {least}, of {_some(names)}"
        case "delete_records":
            upto = [f"{_name(part['topic'], part['partition'])} up to offset {part['offset']}" for part in parts]
            return f"arrived: may wait {request['timeout_ms']:,} ms, to delete {_some(upto)}"
        case "create_topics":
            topics = [f"{topic['topic']} ({topic['partitions']} partitions)" for topic in request["topics"] or []]
            return f"arrived: may wait {request['timeout_ms']:,} ms, to create {_some(topics)}"
        case "list_offsets":
            times = [f"{_name(part['topic'], part['partition'])} at {part['timestamp']}" for part in parts]
            wait = f"may wait {request['timeout_ms']:,} ms" if request["timeout_ms"] else "without a timeout"
            return f"arrived: {wait}, to look up {_some(times)}"
        case other:
            member = f" of {request['member_id']}" if request["member_id"] else ""
            request_name = other.replace("_", " ")
            article = "an" if request_name[0] in "aeiou" else "a"
            return f"started by {article} {request_name} request{member} of group {request['group']}"


def _offsets(part: Row) -> str:
    first, last = part["base_offset"], part["last_offset"]
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def _during_wait(evidence: Evidence) -> Iterator[str]:
    for place, partition_events in sorted(evidence.partition_events.items())[:SHOWN]:
        if evidence.end and evidence.end["watched"] and any(each.times for each in partition_events):
            yield f"{_INDENT}during the wait on {_name(*place)}: {_counted(partition_events)}"
    for pause in evidence.pauses:
        length_ms = (pause["resumed_us"] - pause["paused_us"]) // 1000
        until = f"until {moment(pause['resumed_us'])}, {length_ms:,} ms"
        yield f"{moment(pause['paused_us'])}  broker {pause['broker']} stood still {until}"
    for change in evidence.changes:
        members = ", ".join(change["members"] or [])
        states = f"{change['from_state']} to {change['to_state']}"
        group = f"group {change['group']}: {states} ({change['reason']}); members: {members or 'none'}"
        yield f"{moment(change['at_us'])}  {group}"


_DELIVERY_ENDS = {
    "lock_expired": "its lock expired",
    "session_ended": "its member's session ended",
    "fenced": "the broker dropped its state",
    "gap": "acknowledged as a gap",
}


def delivery_text(delivery: Row) -> str:
    """Return the offsets of a delivery to a share group, its number, and how it ended."""
    first, last = delivery["first_offset"], delivery["last_offset"]
    offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
    ended = _DELIVERY_ENDS.get(delivery["ended_by"], delivery["ended_by"])
    is_queued = delivery["state"] == "ARCHIVING"
    is_limit = (is_queued or delivery["state"] == "ARCHIVED") and delivery["ended_by"] not in ("rejected", "gap")
    archived = "; archived, because it was the last delivery allowed" if is_limit else ""
    archived += "; written to the dead-letter queue first" if is_queued and is_limit else ""
    archived += "; written to the dead-letter queue" if is_queued and not is_limit else ""
    place = f"{offsets} of {_name(delivery['topic'], delivery['partition'])}"
    return f"{place} (delivery {delivery['delivery_count']}): {ended} after {delivery['held_ms']:,} ms{archived}"


def _counted(partition_events: list[PartitionEvents]) -> str:
    """Return the events with their counts as text, most frequent first. Produces and log ends count as appends."""
    times: Counter[str] = Counter()
    for each in partition_events:
        times[_event(each.what, each.replica)] += each.times
    most = sorted(times.items(), key=lambda counted: (-counted[1], counted[0]))
    return ", ".join(f"{f'{count:,} × ' if count > 1 else ''}{event}" for event, count in most if count)


def _event(what: str, replica: int | None) -> str:
    owner = f" of replica {replica}" if replica is not None and what in ("fetch", "replica_end") else ""
    noun = "a fetch" if owner and what == "fetch" else "progress" if owner else EVENT_NAMES.get(what, what)
    return f"{noun}{owner}"


def _ending(evidence: Evidence, end: Row) -> Iterator[str]:
    yield from _replayed_end(evidence, end)
    own = [each for each in evidence.deliveries if each["operation_id"] == end["operation_id"]]
    before = [each for each in evidence.deliveries if each["operation_id"] != end["operation_id"]]
    yield from (f"{_INDENT}acquired {delivery_text(each)}" for each in own[:SHOWN])
    if len(own) > SHOWN:
        yield f"{_INDENT}… and {len(own) - SHOWN} more ranges"
    for each in before[-SHOWN:]:
        to = each["client_id"] or each["member_id"]
        yield f"{_INDENT}before, at {moment(each['acquired_us'])}, {to} acquired {delivery_text(each)}"
    if evidence.recorded:
        waited_ms, outcome = evidence.recorded["recorded_remote_ms"], evidence.recorded["recorded_outcome"]
        late_ms = waited_ms - (end["deadline_us"] - end["started_us"]) / 1000
        late = f", {late_ms:,.0f} ms after its deadline: the broker was late" if late_ms > LATE_MS else ""
        how = "answered at once" if outcome == "at_once" else f"{outcome} after {waited_ms:,.0f} ms"
        yield f"{_INDENT}recorded by the broker: {how}{late}"


def _replayed_end(evidence: Evidence, end: Row) -> Iterator[str]:
    if end["watched"] and not end["expired"]:
        for place, ended_us in sorted(evidence.reads_ended.items())[:SHOWN]:
            yield f"{_INDENT}{_read(end)} of {_name(*place)} took {_milliseconds(end, ended_us)}"
    if end["expired"]:
        late = ", after the last event of the trace" if end["after_end"] else ""
        overdue_ms = (end["ended_us"] - end["deadline_us"]) // 1000
        when = f"{overdue_ms:,} ms after its deadline, when the broker resumed" if overdue_ms else "at its deadline"
        yield f"{moment(end['ended_us'])}  expired {when}{late}"
        yield from (f"{_INDENT}{line}" for line in _expiry_reasons(evidence, end))
        return
    bytes_ = f" ({end['bytes']:,} bytes)" if end["kind"] == "fetch" and end["completed_by"] == "min_bytes" else ""
    yield f"{moment(end['ended_us'])}  {end['completed_by']}: {meaning(end['kind'], end['completed_by'])}{bytes_}"
    deciding = evidence.deciding
    if deciding:
        named = f" ({request_label(deciding['request_id'])})" if deciding["request_id"] else ""
        if deciding["what"] == "isr" and deciding.get("in_sync"):
            named = f" to {', '.join(map(str, deciding['in_sync']))}"
        yield f"{_INDENT}decided on {end['trigger']} by {_event(deciding['what'], deciding['replica'])}{named}"
    elif end["trigger"]:
        yield f"{_INDENT}decided on {end['trigger']}"
    errors = [
        f"{_name(part['topic'], part['partition'])} {part['error']}"
        for part in end["partitions"]
        if part["error"] not in ("NONE", None)
    ]
    if errors:
        yield f"{_INDENT}answered with errors: {_some(errors)}"


def _expiry_reasons(evidence: Evidence, end: Row) -> Iterator[str]:
    match end["kind"]:
        case "produce":
            yield from _laggards(evidence, end)
        case "fetch":
            wanted = evidence.request["min_bytes"] if evidence.request else None
            of = f" of the requested {wanted:,}" if wanted is not None else ""
            yield f"because only {end['bytes'] or 0:,} bytes{of} had become readable"
        case "share_fetch":
            if end["fetcher"] == "remote_twice":
                yield "because its remote reads had not ended, so it expired in its purgatory and again later"
            else:
                yield "because too few records could be acquired before; the response has those that could be then"
        case "remote_fetch" | "list_offsets":
            yield from _unended_reads(evidence, end)
        case "delete_records" | "create_topics":
            pending = [
                _name(part["topic"], part["partition"]) for part in end["partitions"] if part["error"] == PENDING
            ]
            yield f"because of pending partitions ({PENDING}): {_some(pending)}"
        case "heartbeat" | "session":
            yield "because its member sent no request within the session timeout"
        case "join":
            yield "because not every member had rejoined; missing dynamic members were removed"
        case "initial_join":
            yield "as intended: a new group waits for more members until its initial delay has passed"
        case "reconciliation":
            yield "because its member did not give up the partitions that it lost within its rebalance timeout"
        case "sync":
            yield "because not every member had requested its assignment"


def _unended_reads(evidence: Evidence, end: Row) -> Iterator[str]:
    """Yield a line for each remote read that had not ended at the operation's deadline, with its duration if known."""
    waited_ms = end["deadline_us"] // 1000 - end["started_us"] // 1000
    setting = _waiting_setting(evidence, end)
    places = [(watch["topic"], watch["partition"]) for watch in evidence.watches]
    late = [place for place in places if evidence.reads_ended.get(place, end["ended_us"]) >= end["ended_us"]]
    timed_out = {(part["topic"], part["partition"]) for part in end["partitions"] if part["error"] == PENDING}
    for place in late[:SHOWN]:
        if end["kind"] == "list_offsets" and place not in timed_out:
            continue
        ended_us = evidence.reads_ended.get(place)
        took = f"which took {_milliseconds(end, ended_us)}" if ended_us is not None else "which has no recorded end"
        yield f"waited for {_read(end)} of {_name(*place)}, {took}; {setting} is {waited_ms:,}"


def _waiting_setting(evidence: Evidence, end: Row) -> str:
    """Return the name of the setting that defines the operation's maximum wait."""
    if end["kind"] == "remote_fetch":
        return "fetch.max.wait.ms of the consumer" if evidence.waits_as_requested else "remote.fetch.max.wait.ms"
    timeout_ms = evidence.request["timeout_ms"] if evidence.request else None
    return "the request's timeout" if (timeout_ms or 0) > 0 else "remote.list.offsets.request.timeout.ms"


def _read(end: Row) -> str:
    return "the remote read" if end["kind"] == "remote_fetch" else "the remote lookup"


def _milliseconds(end: Row, ended_us: int) -> str:
    return f"{(ended_us - end['started_us']) / 1000:,.0f} ms"


def _laggards(evidence: Evidence, end: Row) -> Iterator[str]:
    """Yield lines about the pending partitions of a produce: up to which offset each in-sync replica had replicated."""
    pending = [(part["topic"], part["partition"]) for part in end["partitions"] if part["error"] == PENDING]
    for place in pending[:SHOWN]:
        needed = _needed(evidence.request, place)
        upto = f" up to offset {needed}" if needed is not None else ""
        in_sync = [replica for replica in evidence.in_sync.get(place, []) if replica != end["broker"]]
        yield f"because {_name(*place)} had to be at every in-sync replica{upto}:"
        for replica in in_sync:
            yield f"  {_reached(evidence.partition_events.get(place, []), replica, needed, end['ended_us'])}"
        if not in_sync:
            yield "  the in-sync replicas are unknown; the high watermark did not reach the offset"
    if len(pending) > SHOWN:
        yield f"and {len(pending) - SHOWN} more partitions"


def _needed(request: Any, place: Place) -> int | None:
    for part in request["partitions"] if request else []:
        if (part["topic"], part["partition"]) == place:
            return int(part["last_offset"]) + 1
    return None


def _reached(partition_events: list[PartitionEvents], replica: int, needed: int | None, end_us: int) -> str:
    known = [each for each in partition_events if each.replica == replica and each.reached is not None]
    if not known:
        return f"replica {replica} has no recorded progress"
    reached = max(each.reached or 0 for each in known)
    ago = (end_us - max(each.last_us for each in known)) / 1000
    verdict = "" if needed is None else " (enough)" if reached >= needed else " (not enough)"
    return f"replica {replica} had reached {reached}{verdict}, last seen {ago:,.0f} ms before the end"


def _name(topic: str, partition: int) -> str:
    return topic if partition < 0 else f"{topic}-{partition}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(names[:SHOWN]) or "nothing") + more
