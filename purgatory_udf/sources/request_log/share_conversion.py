"""Conversion of the requests of share groups (KIP-932), group by group, over all brokers.

A share fetch is an operation at time L, like a fetch. Its line lists only partitions that are new in the member's
session at the broker or that have acknowledgements; the session contains the others. The response has the acquired
offsets, but no bytes. Which records could be acquired at which time follows from the produces, because a replay
distributes the produced records again.

The lines of the share coordinator, at another broker, show the other facts:

    READ_SHARE_GROUP_STATE    the state that a broker read when it first served the group; the first fetch waited for
                              it. Another read by the same broker shows that it had dropped its state of the group
    WRITE_SHARE_GROUP_STATE   when acknowledgements took effect; and offsets that became available without an
                              acknowledgement. If their locks had not expired, the member's session had ended.
                              Records that are first ARCHIVING, then ARCHIVED, are in the dead-letter queue (Kafka 4.4)

    member    ── fetch ── records 5 to 9 ────────── connection closed
    leader                └ locks: 30 s             └ release
    coordinator                                       └ WRITE 5 to 9 available, before the end of the locks
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.assumptions import (
    APPEND_FRACTION,
    SHARE_READ_EARLY_US,
    SHARE_READ_LATE_US,
    SHARE_RELEASE_BEFORE_LOCK_US,
    Report,
)
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.fact_kinds import Fact, ReaderPosition
from purgatory_udf.sources.request_log.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH
from purgatory_udf.sources.request_log.kafka_protocol import Key, topic_of
from purgatory_udf.sources.request_log.logged_request import (
    COMPLETED,
    EXPIRED,
    MALFORMED,
    LoggedOperation,
    RecordedOutcome,
    Request,
    logged_operation,
    recorded_share_fetch,
)

SHARE_FETCH, SHARE_ACKNOWLEDGE = "SHARE_FETCH", "SHARE_ACKNOWLEDGE"
READ_STATE, WRITE_STATE = "READ_SHARE_GROUP_STATE", "WRITE_SHARE_GROUP_STATE"
SHARE_APIS = frozenset({SHARE_FETCH, SHARE_ACKNOWLEDGE, READ_STATE, WRITE_STATE})

RENEW = 4
# States of records in the requests of the share coordinator.
AVAILABLE, ARCHIVING, ARCHIVED = 0, 3, 4
_STATE_NAMES = {0: "AVAILABLE", 2: "ACKNOWLEDGED", 3: "ARCHIVING", 4: "ARCHIVED"}
# Errors of acknowledgements of which the state could not be written. The broker had accepted them.
_WRITE_FAILURES = frozenset({-1, 6, 15, 69})
# Errors of share fetches without the right session.
_SESSION_ERRORS = frozenset({122, 123, errors.SHARE_SESSION_LIMIT_REACHED})
# Defaults of `share.record.lock.duration.ms`.
DEFAULT_LOCK_MS = 30_000

# The client id of a broker that reads or writes states.
_PERSISTER = re.compile(r"Persister-client-(\d+)$")

Converted = tuple[list[LoggedOperation], list[tuple[Key, Fact]]]


def share_session_key(body: Mapping[str, Any]) -> str:
    """Return the key by which the requests of a share group are grouped, distinct from those of fetch sessions."""
    return f"share group {body['groupId']}"


class _StateRead(NamedTuple):
    start_us: int
    answered_us: int
    broker: int | None
    start_offset: int
    states: list[dict[str, Any]]


class _FailedRead(NamedTuple):
    start_us: int
    answered_us: int
    broker: int | None
    error: int


class _StateWrite(NamedTuple):
    start_us: int
    answered_us: int
    start_offset: int
    ranges: list[tuple[int, int]]


class _Held(NamedTuple):
    """Offsets `first` to `last`, both included, that a member has acquired at a broker and not acknowledged yet.

    They were acquired at `since_us` at the earliest; their acquisition locks expire at `until_us`.
    """

    first: int
    last: int
    member: str
    broker: int
    since_us: int
    until_us: int


@dataclass(slots=True)
class _Session:
    """A member's share session at a broker. `complete` is false if the session started before the log."""

    complete: bool
    partitions: dict[Key, None] = field(default_factory=dict)


class ShareGroupConverter:
    """Converts the requests of one group, which must come in the order of S (the start of their handling).

    Call `look_ahead` with the same requests first, because the requests that read and write states follow the requests
    that cause them. `snapshot` and `resumed` carry the group to the next step of a followed log.
    """

    def __init__(self, context: Context, report: Report) -> None:
        self.report = report
        self._context = context
        self._sessions: dict[tuple[int, str], _Session] = {}
        self._held: dict[Key, list[_Held]] = {}
        self._settings: dict[str, int | str] = {}
        # By broker and partition, when the state was read with which the broker serves the group; and the reads of
        # states that are assigned to a fetch.
        self._served: dict[tuple[int, Key], int] = {}
        self._assigned: set[tuple[Key, int]] = set()
        self._reads: dict[Key, list[_StateRead]] = {}
        self._failed_reads: dict[Key, list[_FailedRead]] = {}
        self._writes: dict[Key, list[_StateWrite]] = {}
        # Records on their way to a dead-letter queue: first and last offset.
        self._archiving: dict[Key, list[tuple[int, int]]] = {}
        self._has_queue = False
        self._first_acquired: dict[Key, list[tuple[int, list[dict[str, Any]]]]] = {}
        self._last_us: dict[tuple[int, str], int] = {}

    # What later requests show

    def look_ahead(self, requests: Iterable[Request]) -> None:
        """Collect states, acquired records and the last request of each session from the requests."""
        for request in requests:
            # A malformed request is rejected when it is converted.
            with suppress(*MALFORMED):
                self._note(request)
        for noted in (self._reads, self._failed_reads, self._writes, self._first_acquired):
            for of_partition in noted.values():
                of_partition.sort(key=lambda each: each[0])

    def _note(self, request: Request) -> None:
        if request.api == WRITE_STATE:
            for key, partition in self._partitions(request.body.get("topics")):
                ranges = [(int(batch["firstOffset"]), int(batch["lastOffset"])) for batch in partition["stateBatches"]]
                write = _StateWrite(request.start_us, request.answered_us, int(partition["startOffset"]), ranges)
                self._writes.setdefault(key, []).append(write)
                self._has_queue |= any(int(each["deliveryState"]) == ARCHIVING for each in partition["stateBatches"])
        elif request.api == READ_STATE:
            broker = _persister(request)
            for key, partition in self._partitions((request.answer or {}).get("results")):
                if code := int(partition["errorCode"]):
                    failed = _FailedRead(request.start_us, request.answered_us, broker, code)
                    self._failed_reads.setdefault(key, []).append(failed)
                else:
                    states = [_record_state(batch) for batch in partition.get("stateBatches") or ()]
                    self._has_queue |= any(each["state"] == "ARCHIVING" for each in states)
                    start = int(partition["startOffset"])
                    read = _StateRead(request.start_us, request.answered_us, broker, start, states)
                    self._reads.setdefault(key, []).append(read)
        elif not (request.answer or {}).get("errorCode"):
            member = request.broker, str(request.body["memberId"])
            if int(request.body["shareSessionEpoch"]) > INITIAL_EPOCH:
                self._last_us[member] = max(request.start_us, self._last_us.get(member, 0))
            for key, partition in self._answers(request):
                if acquired := partition.get("acquiredRecords"):
                    self._first_acquired.setdefault(key, []).append((request.answered_us, acquired))

    # Conversion

    def convert(self, request: Request) -> Converted:
        """Convert the next request into operations and facts. Raises one of `logged_request.MALFORMED`."""
        if request.api == WRITE_STATE:
            return [*self._ended_sessions(request), *self._dead_letters(request)], []
        if request.api == READ_STATE:
            return [], []
        if code := (request.answer or {}).get("errorCode"):
            return list(self._refused(request, int(code))), []
        events = list(self._setting_events(request))
        acknowledged = self._acknowledged(request)
        facts: list[tuple[Key, Fact]] = []
        recorded: RecordedOutcome | None = None
        epoch, fetches = int(request.body["shareSessionEpoch"]), request.api == SHARE_FETCH
        if fetches and epoch != FINAL_EPOCH and not request.body.get("isRenewAck"):
            session = self._resolve(request, epoch)
            if session.partitions or session.complete:
                events += self._state_events(request, session)
                events.append(self._fetch_event(request, epoch, session, acknowledged))
                acquired = any(partition.get("acquiredRecords") for _, partition in self._answers(request))
                recorded = recorded_share_fetch(request, _codes(request), acquired)
                recorded.complete = session.complete
                facts = self._acquire(request, bool(acknowledged))
                acknowledged = []
            self.report.count("session_partial" if session.partitions else "session_unknown", int(not session.complete))
        if acknowledged:
            events.append(self._acknowledge_event(request, acknowledged))
        if epoch == FINAL_EPOCH:
            events.append(self._release_event(request))
        operations = [_operation(request, event, number, recorded) for number, event in enumerate(events)]
        return operations, facts

    def _refused(self, request: Request, code: int) -> Iterator[LoggedOperation]:
        """Yield a fetch that was refused because of its session. Other requests with an error are left out."""
        if request.api != SHARE_FETCH or code not in _SESSION_ERRORS:
            self.report.count("share_error")
            return
        self.report.count("share_session_error")
        session = _Session(complete=False)
        if code == errors.SHARE_SESSION_LIMIT_REACHED:
            self._sessions.pop((request.broker, str(request.body["memberId"])), None)
        session.partitions.update(dict.fromkeys(key for key, _ in self._partitions(request.body.get("topics"))))
        event = self._fetch_event(request, int(request.body["shareSessionEpoch"]), session, [])
        recorded = recorded_share_fetch(request, [code], acquired=False)
        if recorded.outcome == EXPIRED:
            # Kafka does not count it as expired.
            recorded.outcome = COMPLETED
        yield _operation(request, event | {"error": errors.name_of(code)}, 0, recorded)

    def _member(self, request: Request) -> dict[str, Any]:
        return {"group": str(request.body["groupId"]), "member_id": str(request.body["memberId"])}

    def _fetch_event(
        self, request: Request, epoch: int, session: _Session, acknowledged: list[dict[str, Any]]
    ) -> dict[str, Any]:
        body = request.body
        partitions = []
        failed = {key for key, partition in self._answers(request) if partition.get("errorCode")}
        for topic, partition in session.partitions:
            entry: dict[str, Any] = {"topic": topic, "partition": partition}
            read_us = self._served.get((request.broker, (topic, partition)), 0)
            if read_us > request.local_us:
                # Another fetch may have caused the read, but be tried later.
                entry["state_read_ms"] = (read_us - request.local_us) // 1000
            if (topic, partition) in failed and (read := self._failed_read(request, (topic, partition))) is not None:
                entry["state_read_ms"] = max(0, read.answered_us - request.local_us) // 1000
                entry["error"] = errors.name_of(read.error)
            partitions.append(entry)
        event = {
            "time_us": request.local_us,
            "type": "share_fetch",
            **self._member(request),
            "session_epoch": epoch,
            "max_wait_ms": int(body["maxWaitMs"]),
            "min_bytes": max(0, int(body["minBytes"])),
            "max_bytes": max(0, int(body["maxBytes"])),
            "partitions": partitions,
        }
        # Early versions have fewer fields.
        for name, of_body in (
            ("max_records", "maxRecords"),
            ("batch_size", "batchSize"),
            ("acquire_mode", "shareAcquireMode"),
        ):
            if of_body in body:
                event[name] = max(0, int(body[of_body]))
        if acknowledged:
            event["acknowledgements"] = acknowledged
            event["state_write_ms"] = self._write_ms(request, request.local_us, acknowledged)
            event |= self._write_errors(request)
        return event

    def _acknowledge_event(self, request: Request, acknowledged: list[dict[str, Any]]) -> dict[str, Any]:
        at_us = request.start_us + round((request.local_us - request.start_us) * APPEND_FRACTION)
        write_ms = self._write_ms(request, at_us, acknowledged)
        return {
            "time_us": at_us,
            "type": "share_acknowledge",
            **self._member(request),
            "session_epoch": int(request.body["shareSessionEpoch"]),
            "acknowledgements": acknowledged,
            "state_write_ms": write_ms,
            **self._write_errors(request),
        }

    def _release_event(self, request: Request) -> dict[str, Any]:
        member = str(request.body["memberId"])
        self._sessions.pop((request.broker, member), None)
        event = {"time_us": request.local_us, "type": "share_release", **self._member(request)}
        if self._becomes_empty(request):
            event["connection_closed"] = True
        for of_partition in self._held.values():
            of_partition[:] = [held for held in of_partition if (held.broker, held.member) != (request.broker, member)]
        return event

    def _becomes_empty(self, request: Request) -> bool:
        """Return whether the broker drops its state of the group, because the last session there has ended.

        This is so if the broker later reads a state again. The log does not show when it closes a connection.
        """
        if any(broker == request.broker for broker, _ in self._sessions):
            return False
        return any(
            read.broker == request.broker and read.start_us > request.start_us
            for key, reads in self._reads.items()
            if (request.broker, key) in self._served
            for read in reads
        )

    def _write_ms(self, request: Request, at_us: int, acknowledged: Sequence[Mapping[str, Any]]) -> int | None:
        """Return how long the states of acknowledged records took to be written; None if the log does not show it."""
        if not request.remote_us:
            return 0
        if request.api == SHARE_ACKNOWLEDGE:
            return max(0, request.answered_us - at_us) // 1000
        answers = []
        for each in acknowledged:
            writes = self._writes.get((each["topic"], each["partition"]), [])
            for write in writes[bisect_left(writes, request.start_us, key=lambda write: write.start_us) :]:
                if any(first <= each["first_offset"] <= last for first, last in write.ranges):
                    answers.append(write.answered_us)
                    break
        return max(0, min(max(answers), request.answered_us) - at_us) // 1000 if answers else None

    def _acknowledged(self, request: Request) -> list[dict[str, Any]]:
        """Return the acknowledgements of a request, and remove their offsets from those that the member holds."""
        member, acknowledged = str(request.body["memberId"]), []
        failures = self._write_errors(request).get("state_write_errors", ())
        unwritten = {(each["topic"], each["partition"]) for each in failures}
        refused = set(self._refusals(request)) - unwritten
        for (topic, partition), entry in self._partitions(request.body.get("topics")):
            for batch in entry.get("acknowledgementBatches") or ():
                first, last = int(batch["firstOffset"]), int(batch["lastOffset"])
                types = [int(kind) for kind in batch["acknowledgeTypes"]]
                place = {"topic": topic, "partition": partition}
                accepted = (topic, partition) not in refused
                fields = {"first_offset": first, "last_offset": last, "types": types, "accepted": accepted}
                acknowledged.append({**place, **fields})
                if (topic, partition) not in unwritten:
                    self._let_go(request, (topic, partition), first, last, member, set(types) == {RENEW})
        return acknowledged

    def _refusals(self, request: Request) -> dict[Key, int]:
        """Return the error of each partition of which the acknowledgements failed."""
        refusal = "acknowledgeErrorCode" if request.api == SHARE_FETCH else "errorCode"
        return {key: int(partition[refusal]) for key, partition in self._answers(request) if partition.get(refusal)}

    def _write_errors(self, request: Request) -> dict[str, Any]:
        """Return the field `state_write_errors` for acknowledgements that waited, or nothing without such errors."""
        refusals = self._refusals(request) if request.remote_us else {}
        return _write_errors((key, code) for key, code in refusals.items() if code in _WRITE_FAILURES)

    def _let_go(self, request: Request, key: Key, first: int, last: int, member: str, renewed: bool) -> None:
        kept = []
        for held in self._held.get(key, ()):
            if (held.broker, held.member) != (request.broker, member) or held.last < first or held.first > last:
                kept.append(held)
                continue
            if held.first < first:
                kept.append(held._replace(last=first - 1))
            if renewed:
                lock_us = held.until_us - held.since_us
                begin, end = max(first, held.first), min(last, held.last)
                kept.append(_Held(begin, end, member, held.broker, request.start_us, request.start_us + lock_us))
            if held.last > last:
                kept.append(held._replace(first=last + 1))
        self._held[key] = kept

    # Sessions

    def _resolve(self, request: Request, epoch: int) -> _Session:
        """Return the member's session with the partitions that this fetch reads."""
        place = request.broker, str(request.body["memberId"])
        session = self._sessions.get(place)
        if epoch == INITIAL_EPOCH or session is None:
            session = self._sessions[place] = _Session(epoch == INITIAL_EPOCH)
        for key, _ in self._partitions(request.body.get("topics")):
            session.partitions[key] = None
        for topic in request.body.get("forgottenTopicsData") or ():
            for partition in topic["partitions"]:
                session.partitions.pop((self._context.name(topic_of(topic)), int(partition)), None)
        if not session.complete:
            session.partitions.update(dict.fromkeys(key for key, _ in self._answers(request)))
        return session

    def _acquire(self, request: Request, acknowledges: bool) -> list[tuple[Key, Fact]]:
        """Record the offsets that a fetch acquired, and return facts which state that consumers could read them."""
        facts: list[tuple[Key, Fact]] = []
        end_us = request.answered_us if request.remote_us else request.local_us
        # With acknowledgements, the fetch may have ended long before their states were written.
        since_us = request.local_us if acknowledges else end_us
        lock_ms = int((request.answer or {}).get("acquisitionLockTimeoutMs") or 0) or DEFAULT_LOCK_MS
        member = str(request.body["memberId"])
        for key, partition in self._answers(request):
            for acquired in partition.get("acquiredRecords") or ():
                first, last = int(acquired["firstOffset"]), int(acquired["lastOffset"])
                held = _Held(first, last, member, request.broker, since_us, since_us + lock_ms * 1000)
                self._held.setdefault(key, []).append(held)
                facts.append((key, ReaderPosition(end_us, end_us, end_us, end_us, -1, last + 1)))
        return facts

    def _ended_sessions(self, request: Request) -> Iterator[LoggedOperation]:
        """Yield the ended sessions that a write shows, because offsets became available before their locks expired."""
        for key, partition in self._partitions(request.body.get("topics")):
            for batch in partition["stateBatches"]:
                if int(batch["deliveryState"]) in (AVAILABLE, ARCHIVING, ARCHIVED):
                    held = self._last_held(key, int(batch["firstOffset"]), int(batch["lastOffset"]), request.start_us)
                    if held is not None and self._has_ended(held, request):
                        yield self._ended_session(request, held)

    def _last_held(self, key: Key, first: int, last: int, at_us: int) -> _Held | None:
        """Remove and return the latest acquisition before `at_us` that overlaps the offsets `first` to `last`.

        Offsets of it outside this range stay acquired. Returns None if there is no unacknowledged acquisition.
        """
        before = [held for held in self._held.get(key, ()) if held.since_us < at_us and held.first <= last]
        found = max((held for held in before if held.last >= first), key=lambda held: held.since_us, default=None)
        if found is not None:
            kept = [held for held in self._held[key] if held is not found]
            if found.first < first:
                kept.append(found._replace(last=first - 1))
            if found.last > last:
                kept.append(found._replace(first=last + 1))
            self._held[key] = kept
        return found

    def _has_ended(self, held: _Held, request: Request) -> bool:
        if request.start_us > held.until_us - SHARE_RELEASE_BEFORE_LOCK_US:
            return False
        place = held.broker, held.member
        if place not in self._sessions or self._last_us.get(place, 0) > request.start_us:
            return False
        del self._sessions[place]
        return True

    def _ended_session(self, request: Request, held: _Held) -> LoggedOperation:
        self.report.count("share_session_ended")
        for of_partition in self._held.values():
            of_partition[:] = [
                other for other in of_partition if (other.broker, other.member) != (held.broker, held.member)
            ]
        event = {
            "time_us": request.arrival_us,
            "type": "share_release",
            "group": str(request.body["groupId"]),
            "member_id": held.member,
            "broker": held.broker,
            "state_write_ms": max(0, request.answered_us - request.arrival_us) // 1000,
            "connection_closed": True,
            **_write_errors(
                (key, int(partition["errorCode"]))
                for key, partition in self._partitions((request.answer or {}).get("results"))
                if partition.get("errorCode")
            ),
        }
        return LoggedOperation(held.broker, request.place, event, None)

    def _dead_letters(self, request: Request) -> Iterator[LoggedOperation]:
        """Yield the ends of writes to the dead-letter queue, after which records are no longer ARCHIVING."""
        broker, group = _persister(request), str(request.body["groupId"])
        for key, partition in self._partitions(request.body.get("topics")):
            for batch in partition["stateBatches"]:
                first, last = int(batch["firstOffset"]), int(batch["lastOffset"])
                queued = self._archiving.get(key, [])
                if int(batch["deliveryState"]) == ARCHIVING:
                    self._archiving.setdefault(key, []).append((first, last))
                elif int(batch["deliveryState"]) == ARCHIVED and (first, last) in queued:
                    queued.remove((first, last))
                    place = {"group": group, "topic": key[0], "partition": key[1], "broker": broker}
                    offsets = {"first_offset": first, "last_offset": last}
                    event = {"time_us": request.arrival_us, "type": "share_dead_letter", **place, **offsets}
                    yield LoggedOperation(broker or 0, request.place, event, None)

    # Settings and states

    def _setting_events(self, request: Request) -> Iterator[dict[str, Any]]:
        """Yield the group's settings, if they have changed: the configuration, and the response's lock duration."""
        group = str(request.body["groupId"])
        settings = self._context.share_settings_at(group, request.start_us)
        lock_ms = int((request.answer or {}).get("acquisitionLockTimeoutMs") or 0)
        if lock_ms and lock_ms != settings.get("record_lock_duration_ms", DEFAULT_LOCK_MS):
            settings["record_lock_duration_ms"] = lock_ms
        if self._has_queue:
            settings["dead_letter_queue"] = True
        if settings != self._settings:
            self._settings = settings
            yield {"time_us": request.start_us, "type": "share_group", "group": group, **settings}

    def _read_for(self, request: Request, key: Key) -> _StateRead | None:
        """Return the read of the state that this fetch has caused, or None."""
        from_us, until_us = request.start_us - SHARE_READ_EARLY_US, request.answered_us
        if (request.broker, key) not in self._served:
            # Other partitions may have answered the fetch before the state was read.
            until_us = request.answered_us + SHARE_READ_LATE_US
        for read in self._reads.get(key, ()):
            is_own = read.broker in (None, request.broker) and (key, read.start_us) not in self._assigned
            if is_own and from_us <= read.start_us < until_us:
                return read
        return None

    def _failed_read(self, request: Request, key: Key) -> _FailedRead | None:
        """Return the last failed read of the state before this fetch was answered, or None."""
        from_us, until_us = request.start_us - SHARE_READ_EARLY_US, request.answered_us
        reads = [
            read
            for read in self._failed_reads.get(key, ())
            if read.broker in (None, request.broker) and from_us <= read.start_us < until_us
        ]
        return reads[-1] if reads else None

    def _state_events(self, request: Request, session: _Session) -> Iterator[dict[str, Any]]:
        """Yield the persisted states of partitions that the broker serves for the group from now on."""
        for key in session.partitions:
            read, place = self._read_for(request, key), (request.broker, key)
            if read is None and place in self._served:
                continue
            is_known = any(of == key for _, of in self._served)
            self._served[place] = read.answered_us if read else 0
            if read is not None:
                self._assigned.add((key, read.start_us))
                self._archiving[key] = [
                    (each["first_offset"], each["last_offset"]) for each in read.states if each["state"] == "ARCHIVING"
                ]
            start, states, supposed = read.start_offset if read else -1, read.states if read else [], 0
            if start < 0 and (read is None or "auto_offset_reset" not in self._settings):
                start = self._first_offset(key, request.start_us)
                supposed = int(start >= 0)
            if read is None and (start < 0 or is_known):
                continue
            self.report.count("share_start_supposed", supposed)
            yield {
                "time_us": request.start_us,
                "type": "share_state",
                "group": str(request.body["groupId"]),
                "topic": key[0],
                "partition": key[1],
                "start_offset": start,
                "states": states,
            }

    def _first_offset(self, key: Key, since_us: int) -> int:
        """Return the share group's start offset from `since_us` on, as far as later requests show it; -1 if unknown.

        It is the lowest offset of the first acquisition and of the first state that is written from then on.
        """
        acquired = next((ranges for at_us, ranges in self._first_acquired.get(key, ()) if at_us >= since_us), [])
        offsets = [int(each["firstOffset"]) for each in acquired]
        offsets += [write.start_offset for write in self._writes.get(key, ())[:1] if write.start_us >= since_us]
        return min(offsets, default=-1)

    # Fields of bodies

    def _partitions(self, topics: Iterable[Mapping[str, Any]] | None) -> Iterator[tuple[Key, Mapping[str, Any]]]:
        for topic in topics or ():
            name = self._context.name(topic_of(dict(topic)))
            for partition in topic["partitions"]:
                number = partition["partitionIndex"] if "partitionIndex" in partition else partition["partition"]
                yield (name, int(number)), partition

    def _answers(self, request: Request) -> Iterator[tuple[Key, Mapping[str, Any]]]:
        return self._partitions((request.answer or {}).get("responses"))

    # State between steps

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON values, from which `resumed` restores it."""
        return {
            "sessions": [
                [broker, member, session.complete, list(map(list, session.partitions))]
                for (broker, member), session in self._sessions.items()
            ],
            "held": [[*key, *held] for key, of_partition in self._held.items() for held in of_partition],
            "settings": self._settings,
            "served": [[broker, *key, read_us] for (broker, key), read_us in self._served.items()],
            "assigned": sorted([*key, start_us] for key, start_us in self._assigned),
            "archiving": [[*key, *offsets] for key, queued in self._archiving.items() for offsets in queued],
            "has_queue": self._has_queue,
        }

    @classmethod
    def resumed(cls, context: Context, report: Report, state: Mapping[str, Any]) -> ShareGroupConverter:
        """Restore the state of a group from a `snapshot`. `report` counts what this step converts."""
        converter = cls(context, report)
        for broker, member, complete, partitions in state["sessions"]:
            keys = ((topic, number) for topic, number in partitions)
            converter._sessions[broker, member] = _Session(complete, dict.fromkeys(keys))
        for topic, partition, *held in state["held"]:
            converter._held.setdefault((topic, partition), []).append(_Held(*held))
        converter._settings = dict(state["settings"])
        converter._served = {(broker, (topic, number)): read_us for broker, topic, number, read_us in state["served"]}
        converter._assigned = {((topic, partition), start_us) for topic, partition, start_us in state["assigned"]}
        for topic, partition, first, last in state.get("archiving", ()):
            converter._archiving.setdefault((topic, partition), []).append((first, last))
        converter._has_queue = state.get("has_queue", False)
        return converter


def _operation(
    request: Request, event: dict[str, Any], number: int, recorded: RecordedOutcome | None
) -> LoggedOperation:
    of_fetch = recorded if event["type"] == "share_fetch" else None
    if event["type"] in ("share_group", "share_state"):
        return LoggedOperation(request.broker, request.place, {**event, "broker": request.broker}, None, number)
    return logged_operation(request, event, of_fetch, number)


def _persister(request: Request) -> int | None:
    """Return the broker that sent a request to the share coordinator, or None if its client id does not show it."""
    found = _PERSISTER.search(request.client_id or "")
    return int(found[1]) if found else None


def _write_errors(codes: Iterable[tuple[Key, int]]) -> dict[str, Any]:
    listed = [{"topic": key[0], "partition": key[1], "error": errors.name_of(code)} for key, code in codes]
    return {"state_write_errors": listed} if listed else {}


def _codes(request: Request) -> list[int]:
    topics = (request.answer or {}).get("responses") or ()
    return [int(partition.get("errorCode", 0)) for topic in topics for partition in topic["partitions"]]


def _record_state(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "first_offset": int(batch["firstOffset"]),
        "last_offset": int(batch["lastOffset"]),
        "state": _STATE_NAMES[int(batch["deliveryState"])],
        "delivery_count": int(batch["deliveryCount"]),
    }
