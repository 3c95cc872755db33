"""Share groups: the share sessions at a broker, and the workers, which are the members of the groups.

    worker       ──SHARE_FETCH──► leader     in a session, with acknowledgements of earlier records if `commit` is poll
                 ◄──records─────             once it can acquire some, and the acknowledgements are written
                 ──SHARE_ACKNOWLEDGE──►      if `commit` is sync
                 ◄──────────────             once the share coordinator has written the state

A worker closes its session with its last request, or with its connection; the broker then releases the records that
the worker holds. A group assigns the partitions by heartbeats, which are not events of the trace.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import simpy

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.reference.delayed_share_fetch import DelayedShareFetch
from purgatory_udf.rules.reference.event_handlers import RECORD_LIMIT
from purgatory_udf.rules.reference.share_records import (
    ACCEPT,
    INVALID_RECORD_STATE,
    REJECT,
    RELEASE,
    AcquiredRange,
)
from purgatory_udf.simulation.client_network import RETRY_BACKOFF_MS, Client, Connection, Reply
from purgatory_udf.simulation.messages import (
    NONE,
    Acknowledgements,
    Metadata,
    ShareFetchRequest,
    ShareRequest,
    ShareResponse,
)
from purgatory_udf.simulation.scenario import ShareGroupSettings, ShareWorkers
from purgatory_udf.simulation.simpy_environment import Environment, ProcessGenerator

SHARE_SESSION_NOT_FOUND = "SHARE_SESSION_NOT_FOUND"
INVALID_SHARE_SESSION_EPOCH = "INVALID_SHARE_SESSION_EPOCH"


@dataclass(slots=True)
class ShareSession:
    """A member's session at a broker: its connection, the epoch of its next fetch, and its partitions in order."""

    connection: Connection
    epoch: int
    partitions: list[TopicPartition]


class ShareSessions:
    """A broker's share sessions, and its answers to members of share groups."""

    def __init__(self, environment: Environment, broker: int, groups: Iterable[ShareGroupSettings]) -> None:
        self._environment = environment
        self._broker = broker
        self._write_times = {group.name: group.state_write for group in groups}
        self._random = environment.random_stream("share-coordinator", str(broker))
        self._sessions: dict[tuple[str, str], ShareSession] = {}

    def clear(self) -> None:
        """Drop all sessions, as a broker restart does."""
        self._sessions.clear()

    def handle(self, request: ShareRequest, connection: Connection, reply: Reply) -> int | None:
        """Handle a request of a member.

        Returns the `seq` of its event, or None if the request has a wrong session or no effect.
        """
        if isinstance(request, ShareFetchRequest):
            return self._fetch(request, connection, reply)
        seq = None
        if request.acknowledgements:
            seq = self._record("share_acknowledge", request, acknowledgements=_acknowledgements(request))
            self._when_written(seq, lambda errors: reply(ShareResponse(errors=errors), 0))
        if request.ends_session:
            self._sessions.pop((request.group, request.member_id), None)
            seq = self._record("share_release", request)
            self._when_written(seq, lambda _: reply(ShareResponse(), 0))
        return seq

    def _fetch(self, fetch: ShareFetchRequest, connection: Connection, reply: Reply) -> int | None:
        session = self._sessions.get((fetch.group, fetch.member_id))
        if fetch.epoch == 0:
            session = self._sessions[fetch.group, fetch.member_id] = ShareSession(connection, 0, [])
        if session is None or session.epoch != fetch.epoch:
            error = SHARE_SESSION_NOT_FOUND if session is None else INVALID_SHARE_SESSION_EPOCH
            reply(ShareResponse(error), 0)
            return None
        session.epoch += 1
        kept = [key for key in session.partitions if key in fetch.partitions]
        session.partitions = [*kept, *(key for key in fetch.partitions if key not in kept)]
        ended: list[DelayedShareFetch] = []
        written: list[dict[TopicPartition, str]] = [] if fetch.acknowledgements else [{}]

        def respond() -> None:
            if ended and written:
                reply(_fetch_response(ended[0], written[0]), 0)

        def end(operation: DelayedShareFetch) -> None:
            ended.append(operation)
            respond()

        def write(errors: dict[TopicPartition, str]) -> None:
            written.append(errors)
            respond()

        seq = self._record(
            "share_fetch",
            fetch,
            end,
            session_epoch=fetch.epoch,
            max_wait_ms=fetch.max_wait_ms,
            min_bytes=fetch.min_bytes,
            max_bytes=fetch.max_bytes,
            max_records=fetch.max_records,
            batch_size=fetch.max_records,
            acquire_mode=fetch.acquire_mode,
            partitions=[{"topic": key.topic, "partition": key.partition} for key in session.partitions],
            acknowledgements=_acknowledgements(fetch) or None,
        )
        if fetch.acknowledgements:
            self._when_written(seq, write)
        return seq

    def disconnected(self, connection: Connection) -> None:
        """End the sessions of a connection that was closed."""
        for (group, member_id), session in list(self._sessions.items()):
            if session.connection is connection:
                del self._sessions[group, member_id]
                self._environment.record(
                    "share_release",
                    self._broker,
                    group=group,
                    member_id=member_id,
                    state_write_ms=self._write_ms(group),
                )

    def _record(
        self, kind: str, request: ShareRequest, respond: Callable[[Any], None] | None = None, **fields: Any
    ) -> int:
        return self._environment.record(
            kind,
            self._broker,
            respond,
            request_id=request.request_id,
            client_id=request.client_id,
            group=request.group,
            member_id=request.member_id,
            state_write_ms=self._write_ms(request.group),
            **fields,
        )

    def _write_ms(self, group: str) -> int:
        return self._random.delay_us(self._write_times[group]) // 1000

    def _when_written(self, seq: int, call: Callable[[dict[TopicPartition, str]], None]) -> None:
        """Call `call` with the errors of partitions, once the acknowledgements of an event are written."""
        answers = self._environment.engine.cluster.broker(self._broker).shares.answers
        (answer,) = (answer for answer in answers if answer.operation_id == seq)
        answers.clear()
        errors = {key: error for key, error in answer.errors.items() if error != NONE}
        # A replay under other settings needs to know which records the member held, as in a recording.
        for each in self._environment.events[seq - 1].get("acknowledgements") or ():
            each["accepted"] = TopicPartition(each["topic"], each["partition"]) not in errors
        if answer.written_us is None:
            answer.respond = lambda: call(errors)
        else:
            call(errors)


def _acknowledgements(request: ShareRequest) -> list[dict[str, Any]]:
    return [
        {"topic": key.topic, "partition": key.partition, "first_offset": first, "last_offset": last, "types": types}
        for key, ranges in request.acknowledgements.items()
        for first, last, types in ranges
    ]


def _fetch_response(operation: DelayedShareFetch, errors: dict[TopicPartition, str]) -> ShareResponse:
    acquired = {key: answer.acquired for key, answer in operation.response.items() if answer.acquired}
    fetched = {key: answer.error for key, answer in operation.response.items() if answer.error != NONE}
    return ShareResponse(acquired=acquired, errors=errors | fetched)


class ShareGroupMembers:
    """The members of a share group, and their partitions. A member without heartbeats is removed after a time."""

    def __init__(self, environment: Environment, settings: ShareGroupSettings) -> None:
        self.settings = settings
        self._environment = environment
        self._heard_us: dict[str, int] = {}

    def heartbeat(self, member_id: str) -> None:
        """Add the member, or keep it in the group."""
        oldest_us = self._environment.now_us - self.settings.session_timeout_ms * 1000
        self._heard_us = {member: heard for member, heard in self._heard_us.items() if heard > oldest_us}
        self._heard_us[member_id] = self._environment.now_us

    def leave(self, member_id: str) -> None:
        """Remove the member."""
        self._heard_us.pop(member_id, None)

    def assigned(self, member_id: str, metadata: Metadata) -> list[TopicPartition]:
        """Return the member's partitions. With more members than partitions, several members share a partition."""
        topics, members = self.settings.topics, sorted({*self._heard_us, member_id})
        keys = [TopicPartition(topic, at) for topic in topics for at in range(metadata.topics.get(topic, 0))]
        place = members.index(member_id)
        if len(members) >= len(keys):
            return keys[place % len(keys) : place % len(keys) + 1] if keys else []
        return keys[place :: len(members)]


class ShareWorker:
    """One run of a worker, from its start to its close or crash.

    `records` counts the records that it has accepted without an error, `refused` those that it no longer held. As in
    Kafka, an acceptance of records that another worker has finished already has no error.
    """

    def __init__(self, client: Client, settings: ShareWorkers, members: ShareGroupMembers) -> None:
        self.records = 0
        self.refused = 0
        self.closing = False
        self.failed: str | None = None
        self._client = client
        self._environment = client.environment
        self._settings = settings
        self._members = members
        self._random = client.environment.random_stream("worker", client.name)
        self._partitions: list[TopicPartition] = []
        self._is_stale = True
        self._epochs: Counter[int] = Counter()
        self._pending: set[int] = set()
        self._fetched: deque[tuple[int, dict[TopicPartition, list[AcquiredRange]]]] = deque()
        self._unsent: dict[int, Acknowledgements] = {}
        self._response_received = self._environment.env.event()

    def run(self) -> ProcessGenerator[None]:
        """The application: fetch, process, acknowledge, until it is closed."""
        heartbeats = self._environment.env.process(self._heartbeats())
        try:
            while not self.closing:
                if self._is_stale:
                    self._is_stale = False
                    yield from self._client.refresh_metadata()
                    self._assign()
                if self._fetched:
                    yield from self._process(*self._fetched.popleft())
                else:
                    self._send_fetches()
                    yield self._response_received | self._environment.sleep_ms(RETRY_BACKOFF_MS)
                    yield from self._client.wait_while_paused()
            yield from self._close()
        except simpy.Interrupt:
            self.failed = "crashed"
        finally:
            if heartbeats.is_alive:
                heartbeats.interrupt()
            self._client.disconnect()

    def _heartbeats(self) -> ProcessGenerator[None]:
        try:
            while True:
                self._members.heartbeat(self._client.name)
                self._assign()
                yield self._environment.sleep_ms(self._members.settings.heartbeat_interval_ms)
                yield from self._client.wait_while_paused()
        except simpy.Interrupt:
            return

    def _assign(self) -> None:
        self._partitions = self._members.assigned(self._client.name, self._client.metadata)

    def _send_fetches(self) -> None:
        """Send a fetch to every leader of assigned partitions that has none in flight."""
        by_broker: dict[int, list[TopicPartition]] = {}
        for key in self._partitions:
            leader = self._client.metadata.leaders.get(key)
            if leader is None:
                self._is_stale = True
            else:
                by_broker.setdefault(leader[0], []).append(key)
        for broker, keys in by_broker.items():
            if broker not in self._pending:
                self._pending.add(broker)
                self._environment.env.process(self._fetch(broker, keys))
        for broker in [broker for broker in self._unsent if broker not in by_broker]:
            self._environment.env.process(self._acknowledge(broker, self._unsent.pop(broker)))

    def _fetch(self, broker: int, keys: list[TopicPartition]) -> ProcessGenerator[None]:
        settings, epoch = self._settings, self._epochs[broker]
        unsent = self._unsent.pop(broker, {})
        request = ShareFetchRequest(
            **self._request_fields(),
            # A new session has nothing to acknowledge: the broker has released what the former one held.
            acknowledgements=unsent if epoch else {},
            epoch=epoch,
            partitions=keys,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            max_records=settings.max_poll_records,
            acquire_mode=RECORD_LIMIT if settings.acquire == "record_limit" else 0,
        )
        response = yield from self._client.request(broker, request)
        self._pending.discard(broker)
        if isinstance(response, ShareResponse) and response.error == NONE:
            self._epochs[broker] = epoch + 1
            self._handle_errors(response, request.acknowledgements)
            if response.acquired:
                self._fetched.append((broker, response.acquired))
        else:
            self._epochs[broker] = 0
            self._is_stale = True
        self._response_received.succeed()
        self._response_received = self._environment.env.event()

    def _handle_errors(self, response: ShareResponse, acknowledgements: Acknowledgements) -> None:
        self._is_stale |= any(error != INVALID_RECORD_STATE for error in response.errors.values())
        for key, ranges in acknowledgements.items():
            accepted = sum(
                types.count(ACCEPT) if len(types) > 1 else (last + 1 - first) * (types[0] == ACCEPT)
                for first, last, types in ranges
            )
            if response.errors.get(key) is None:
                self.records += accepted
            else:
                self.refused += accepted

    def _process(self, broker: int, acquired: Mapping[TopicPartition, list[AcquiredRange]]) -> ProcessGenerator[None]:
        """Process records, and acknowledge them when all are done."""
        acknowledgements: Acknowledgements = {}
        count = 0
        for key, ranges in acquired.items():
            for first, last, _ in ranges:
                types = [self._draw_type() for _ in range(first, last + 1)]
                count += len(types)
                compact = types[:1] if len(set(types)) == 1 else types
                acknowledgements.setdefault(key, []).append((first, last, compact))
        yield self._environment.sleep_us(round(count * self._settings.process_us * self._random.uniform(0.5, 1.5)))
        yield from self._client.wait_while_paused()
        if self._settings.commit == "poll":
            self._unsent[broker] = acknowledgements
        else:
            yield from self._acknowledge(broker, acknowledgements)

    def _draw_type(self) -> int:
        drawn = self._random.uniform(0, 1)
        if drawn < self._settings.release_share:
            return RELEASE
        return REJECT if drawn < self._settings.release_share + self._settings.reject_share else ACCEPT

    def _acknowledge(
        self, broker: int, acknowledgements: Acknowledgements, ends_session: bool = False
    ) -> ProcessGenerator[None]:
        request = ShareRequest(**self._request_fields(), acknowledgements=acknowledgements, ends_session=ends_session)
        response = yield from self._client.request(broker, request)
        if isinstance(response, ShareResponse):
            self._handle_errors(response, acknowledgements)
        else:
            self._epochs[broker] = 0
            self._is_stale = True

    def _request_fields(self) -> dict[str, Any]:
        return {
            "client_id": self._client.client_id,
            "request_id": self._client.next_request_id(),
            "group": self._members.settings.name,
            "member_id": self._client.name,
        }

    def _close(self) -> ProcessGenerator[None]:
        """Acknowledge what is processed, end the sessions, and leave the group."""
        for broker, acknowledgements in self._unsent.items():
            yield from self._acknowledge(broker, acknowledgements)
        for broker in [broker for broker, epoch in self._epochs.items() if epoch]:
            yield from self._acknowledge(broker, {}, ends_session=True)
        self._members.leave(self._client.name)
