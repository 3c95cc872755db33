"""Evidence in words and times: arrived, watched on which keys, what happened there, what ended it, and why not before.

fetch r-812 of billing at broker 1 (operation 812): completed after 42 ms
  09:00:01.200310  arrived from a consumer: at least 1,000 bytes within 500 ms, of orders-0 from offset 118, …
                   had to wait, at most until 09:00:01.700000: watched on orders-0, orders-1, orders-2
                   meanwhile on orders-0: 3 × an append, 2 × a fetch of replica 2, a fetch of replica 3
  09:00:01.242977  min_bytes: as many bytes as it asked for were readable (1,204 bytes)
                   decided on orders-0 by a fetch of replica 3 (f-977)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from purgatory_udf.answers.explain.evidence import Evidence, PartitionHappening, Place

Row = Mapping[str, Any]


# What the words of `completed_by` mean, as a sentence's end: "it was over because …".


_SHARED = {
    "not_leader": "the broker no longer led the partition",
    "unknown_partition": "the partition had been deleted",
    "offline": "the partition's log directory was offline",
    "empty": "it asked for nothing",
    "broker_stopped": "the broker stopped: nobody was answered",
    "unloaded": "the broker had given the group away: another coordinates it now",
}

_RULES = {
    "produce": {
        "high_watermark": "every in-sync replica had its records: the high watermark had passed them",
        "not_enough_replicas": "its records were replicated, but to fewer replicas than min.insync.replicas",
        "acks": "acks=0 or 1 waits for no replica",
        "invalid_acks": "there are no such acks",
        "append_error": "none of its partitions could be appended to",
    },
    "fetch": {
        "min_bytes": "as many bytes as it asked for were readable",
        "preferred_replica": "another replica is nearer to the consumer, which is told so at once",
        "truncated": "the log had been cut off before its offset (case C)",
        "older_segment": "its offset lies in an older segment than the log's end (case C)",
        "fenced_epoch": "its leader epoch was older than the broker's",
        "unknown_epoch": "its leader epoch was newer than the broker's",
        "offset_out_of_range": "its offset lies outside the log",
        "no_partitions": "it asked for no partition",
    },
    "delete_records": {"low_watermark": "the log began at or after the offset that it asked for"},
    "create_topics": {"leaders": "every partition of its topics had a leader", "no_wait": "it was told not to wait"},
    "heartbeat": {
        "heartbeat": "the member sent its next heartbeat",
        "offset_commit": "the member committed offsets",
        "join_group": "the member joined again",
        "sync_group": "the member asked for its assignment",
        "leave_group": "the member left",
        "new_generation": "a new generation began, and a new session with it",
        "assignment": "the member got its assignment, and a new session with it",
        "awaiting_join": "the member waits in a join, which has no session",
        "awaiting_sync": "the member waits for its assignment, which has no session",
        "group_loaded": "the broker loaded the group, and a new session began with it",
        "group_unloaded": "the broker gave the group away: another coordinates it now",
        "group_stopped": "the broker that coordinated the group stopped, and nobody was answered",
        "replaced": "another member took over its instance id",
        "removed": "the member was removed from the group",
    },
    "join": {"all_joined": "every member had joined", "no_members": "no member was left"},
    "initial_join": {"no_members": "no member was left"},
    "sync": {
        "rebalance": "another rebalance began",
        "all_synced": "the leader's assignment had come, and every member had asked for it",
    },
}


def meaning(kind: str, rule: str) -> str:
    """Why the rule ends an operation of the kind; a rule without a sentence speaks for itself."""
    return _RULES.get(kind, {}).get(rule) or _SHARED.get(rule) or rule.replace("_", " ")


# A partition event by what it says happened.
HAPPENED = {
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
}


PENDING = "REQUEST_TIMED_OUT"
STOPPED = "broker_stopped"
# More partitions than this tell nobody more.
SHOWN = 5
_INDENT = " " * 17


def story(evidence: Evidence) -> list[str]:
    """The lines of one operation's story, a title first."""
    end, request = evidence.end, evidence.request
    if end is None:
        assert request is not None
        lines = [
            f"{moment(request['time_us'])}  {_arrived(request)}",
            f"{_INDENT}still open: it is in no table of ends",
        ]
        return [
            f"{request['type']} {_of(request)} at broker {request['broker'] or 0} (operation {request['seq']})",
            *_in(lines),
        ]
    how = "expired" if end["expired"] else "cancelled" if end["completed_by"] == STOPPED else "completed"
    title = f"{end['kind']} {_of(end)} at broker {end['broker']} (operation {end['operation_id']}): {how} {_after(end)}"
    return [title, *_in([*_beginning(evidence, end), *_meanwhile(evidence), *_ending(evidence, end)])]


def moment(time_us: int) -> str:
    """The time of day, to the microsecond."""
    return f"{datetime.fromtimestamp(time_us // 1_000_000, UTC):%H:%M:%S}.{time_us % 1_000_000:06}"


def _in(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _of(row: Row) -> str:
    """How people call it: by request and client, else by its key."""
    request = row["request_id"] or ""
    client = f"of {row['client_id']}" if row["client_id"] else ""
    key = "" if request or "key" not in row or not row["key"] else f"on {row['key']}"
    return " ".join(filter(None, [request, client, key])) or "without a name"


def _after(end: Row) -> str:
    return f"after {end['wait_ms']:,} ms" if end["watched"] else "on arrival"


def _beginning(evidence: Evidence, end: Row) -> Iterator[str]:
    asked = _arrived(evidence.request) if evidence.request else "began"
    yield f"{moment(end['started_us'])}  {asked}"
    if not end["watched"]:
        return
    keys = [_name(watch["topic"], watch["partition"]) for watch in evidence.watches] or [str(end["key"])]
    yield f"{_INDENT}had to wait, at most until {moment(end['deadline_us'])}: watched on {_some(keys)}"


def _arrived(request: Row) -> str:
    parts = request["partitions"] or []
    match request["type"]:
        case "produce":
            batches = [
                f"{_name(part['topic'], part['partition'])} (offsets {part['base_offset']} to {part['last_offset']})"
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
        case "delete_records":
            upto = [f"{_name(part['topic'], part['partition'])} up to offset {part['offset']}" for part in parts]
            return f"arrived: may wait {request['timeout_ms']:,} ms, to delete {_some(upto)}"
        case "create_topics":
            topics = [f"{topic['topic']} ({topic['partitions']} partitions)" for topic in request["topics"] or []]
            return f"arrived: may wait {request['timeout_ms']:,} ms, to create {_some(topics)}"
        case other:
            member = f" of {request['member_id']}" if request["member_id"] else ""
            return f"began with a {other}{member} of group {request['group']}"


def _meanwhile(evidence: Evidence) -> Iterator[str]:
    for place, happenings in sorted(evidence.happenings.items())[:SHOWN]:
        during = [_counted(each) for each in sorted(happenings, key=_most_first) if each.times]
        if during and evidence.end and evidence.end["watched"]:
            yield f"{_INDENT}meanwhile on {_name(*place)}: {', '.join(during)}"
    for change in evidence.changes:
        members = ", ".join(change["members"] or [])
        states = f"{change['from_state']} to {change['to_state']}"
        group = f"group {change['group']}: {states} ({change['reason']}); members: {members or 'none'}"
        yield f"{moment(change['at_us'])}  {group}"


def _most_first(happening: PartitionHappening) -> tuple[int, str, int]:
    return -happening.times, happening.what, -1 if happening.replica is None else happening.replica


def _counted(happening: PartitionHappening) -> str:
    times = f"{happening.times:,} × " if happening.times > 1 else ""
    return f"{times}{_event(happening.what, happening.replica)}"


def _event(what: str, replica: int | None) -> str:
    whose = f" of replica {replica}" if replica is not None and what in ("fetch", "replica_end") else ""
    noun = "a fetch" if whose and what == "fetch" else "progress" if whose else HAPPENED.get(what, what)
    return f"{noun}{whose}"


def _ending(evidence: Evidence, end: Row) -> Iterator[str]:
    if end["expired"]:
        late = ", after the last event of the trace" if end["after_end"] else ""
        yield f"{moment(end['ended_us'])}  expired at its deadline{late}"
        yield from (f"{_INDENT}{line}" for line in _why_expired(evidence, end))
        return
    bytes_ = f" ({end['bytes']:,} bytes)" if end["kind"] == "fetch" and end["completed_by"] == "min_bytes" else ""
    yield f"{moment(end['ended_us'])}  {end['completed_by']}: {meaning(end['kind'], end['completed_by'])}{bytes_}"
    deciding = evidence.deciding
    if deciding:
        named = f" ({deciding['request_id']})" if deciding["request_id"] else ""
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


def _why_expired(evidence: Evidence, end: Row) -> Iterator[str]:
    match end["kind"]:
        case "produce":
            yield from _laggards(evidence, end)
        case "fetch":
            wanted = evidence.request["min_bytes"] if evidence.request else None
            of = f" of the {wanted:,} that it wanted" if wanted is not None else ""
            yield f"because only {end['bytes'] or 0:,} bytes{of} had become readable"
        case "delete_records" | "create_topics":
            pending = [
                _name(part["topic"], part["partition"]) for part in end["partitions"] if part["error"] == PENDING
            ]
            yield f"because {_some(pending)} had not come so far: {PENDING}"
        case "heartbeat":
            yield "because its member gave no sign of life for a whole session"
        case "join":
            yield "because not every member had come back by then; who had not is out of the group"
        case "initial_join":
            yield "as it always does: a new group waits for more members"
        case "sync":
            yield "because members had not asked for their assignment by then"


def _laggards(evidence: Evidence, end: Row) -> Iterator[str]:
    """For each pending partition, which in-sync replica had not reached what the request had appended."""
    pending = [(part["topic"], part["partition"]) for part in end["partitions"] if part["error"] == PENDING]
    for place in pending[:SHOWN]:
        needed = _needed(evidence.request, place)
        upto = f" up to offset {needed}" if needed is not None else ""
        in_sync = [replica for replica in evidence.in_sync.get(place, []) if replica != end["broker"]]
        yield f"because {_name(*place)} had to be at every in-sync replica{upto}, and the trace says:"
        for replica in in_sync:
            yield f"  {_reached(evidence.happenings.get(place, []), replica, needed, end['ended_us'])}"
        if not in_sync:
            yield "  nothing of who is in sync; its high watermark did not get there"
    if len(pending) > SHOWN:
        yield f"and so on for {len(pending) - SHOWN} more partitions"


def _needed(request: Any, place: Place) -> int | None:
    for part in request["partitions"] if request else []:
        if (part["topic"], part["partition"]) == place:
            return int(part["last_offset"]) + 1
    return None


def _reached(happenings: list[PartitionHappening], replica: int, needed: int | None, end_us: int) -> str:
    known = [each for each in happenings if each.replica == replica and each.reached is not None]
    if not known:
        return f"replica {replica} was not heard of at all"
    reached = max(each.reached or 0 for each in known)
    ago = (end_us - max(each.last_us for each in known)) / 1000
    verdict = "" if needed is None else " (enough)" if reached >= needed else " (not enough)"
    return f"replica {replica} had reached {reached}{verdict}, last heard of {ago:,.0f} ms before the end"


def _name(topic: str, partition: int) -> str:
    return topic if partition < 0 else f"{topic}-{partition}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(names[:SHOWN]) or "nothing") + more
