"""Random request logs of a cluster of three brokers: produces, fetches, transactions, moves of leaders, settings.

Recordings have few of their errors, retries, truncations and lost sessions, and few events at the same time. Times are
milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster_metadata import (
    GIVEN,
    BrokerUnfenced,
    ClusterMetadata,
    LifecycleEvent,
    PartitionChange,
)
from purgatory_udf.sources.request_log.internal_topics import StoredBatch
from tests.sources.request_log.log_lines import log_line, message, us
from tests.sources.request_log.random_values import RandomValues

BROKERS = (0, 1, 2)
Fields = dict[str, Any]
Key = tuple[str, int]
IDS = {name: f"{number}{'w' * 20}A" for number, name in enumerate(("a", "b", "tiered", "state", "groups"))}
OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
SIZES = {"a": 2, "b": 1, "tiered": 1, OFFSETS: 2, STATE: 1}
TOPIC_IDS = {"a": IDS["a"], "b": IDS["b"], "tiered": IDS["tiered"], OFFSETS: IDS["groups"], STATE: IDS["state"]}
# Gaps between requests: small ones make ties, large ones are the bounds of the import's assumptions.
GAPS = (0.0, 0.0, 0.0, 0.001, 0.1, 0.2, 0.5, 1.0, 1.0, 3.0, 8.0, 20.0, 50.0)
RARE_GAPS = (60.0, 150.0, 200.0, 500.0, 2_000.0, 5_000.0, 16_000.0)


@dataclass
class Log:
    """The log of a partition: `batches` have base offset, last offset and size."""

    leader: int
    epoch: int = 0
    start: int = 0
    end: int = 0
    mark: int = 0
    isr: list[int] = field(default_factory=lambda: list(BROKERS))
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    copied: dict[int, int] = field(default_factory=dict)

    def size(self, first: int, until: int) -> int:
        return sum(size for base, last, size in self.batches if first <= last < until)


@dataclass
class Session:
    """A reader's session: the next offset of each partition, and the offsets that the broker knows."""

    id: int
    epoch: int = 0
    offsets: dict[Key, int] = field(default_factory=dict)
    known: dict[Key, int] = field(default_factory=dict)


class RandomCluster(RandomValues):
    """Random lines of the request logs of one cluster."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.ms = 1_000.0
        self.lines: list[tuple[float, int, str]] = []
        self.is_old = self.one_in(3)
        self._has_ids = not self.is_old and not self.one_in(6)
        self._whole_ms = self.one_in(4)
        self._has_threads = not self.one_in(8)
        self._has_rack, self._is_committed = self.one_in(3), self.one_in(3)
        self.logs = {(topic, number): Log(self.of(*BROKERS)) for topic, size in SIZES.items() for number in range(size)}
        self._sessions: dict[tuple[int, str], Session] = {}
        self._waiting: list[tuple[float, tuple[int, str], Fields]] = []
        self._next_id = 10
        self._open: dict[str, set[Key]] = {}
        self.stored: dict[Key, list[StoredBatch]] = {}
        self.changes: list[PartitionChange] = []
        self._lifecycle: list[LifecycleEvent] = []
        self._unfenced: list[BrokerUnfenced] = []
        for key, log in self.logs.items():
            if self.one_in(2):
                log.start = log.end = log.mark = self.below(4)
            log.copied = dict.fromkeys(BROKERS, log.end)
            self._note_change(key, log, -5_000)

    def advance(self) -> None:
        """Let time pass; seldom so long that sessions end."""
        rare = self.of(*RARE_GAPS) if not self.one_in(40) else 700_000.0
        self.ms = round(self.ms + (rare if self.one_in(40) else self.of(*GAPS)), 3)

    # Lines

    def write(
        self, api: str, request: Fields, response: Fields | None, broker: int, remote: float = 0.0, **more: Any
    ) -> None:
        """Add the line of a request that arrives now, or at `arrival`."""
        times = {name: more.pop(name, self.of(*values)) for name, values in
                 (("queue", (0.0, 0.0, 0.0, 0.3, 2.0)), ("local", (0.0, 0.2, 1.0, 1.0, 2.0, 6.0)))}  # fmt: skip
        arrival = more.pop("arrival", self.ms)
        body = message(api, request, response, remote=remote, **times, **more)
        if self.one_in(6):
            body["responseQueueTimeMs"], body["sendTimeMs"] = self.of(0.1, 1.0), self.of(0.0, 0.2)
        if self.is_old and self.one_in(4) and body["requestHeader"]["requestApiKey"] != 99:
            del body["requestHeader"]["requestApiKeyName"]
        body["totalTimeMs"] = sum(body[name] for name in body if name.endswith("TimeMs") and name != "totalTimeMs")
        at = arrival + body["totalTimeMs"] + self.of(0.0, 0.0, 0.0, 0.1)
        line = log_line(round(at) if self._whole_ms else at, body, broker)
        if self._whole_ms:
            stamp, rest = line.split(" ", 1)
            line = f"[{stamp[:10]} {stamp[11:19]},{stamp[20:23] if len(stamp) > 20 else '000'}] {rest}"
        if not self._has_threads:
            line = line.replace(f"network-thread-{broker}-", "thread-")
        if not self.one_in(8):
            text, _, json_text = line.partition("Completed request:")
            line = f"{text}Completed request:{json.dumps(json.loads(json_text), separators=(',', ':'))}"
        self.lines.append((at, broker, line))

    def write_text(self, broker: int, text: str) -> None:
        self.lines.append((self.ms, broker, text))

    def topic(self, name: str, *, fetch: bool = False) -> Fields:
        """Return the fields that identify a topic."""
        if self._has_ids:
            return {"topicId": TOPIC_IDS[name]}
        return {"topic" if fetch else "name": name}

    def by_topic(self, entries: dict[Key, Fields], partitions: str, **how: bool) -> list[Fields]:
        """Return topics with the entries of their partitions in the field `partitions`."""
        topics: dict[str, list[Fields]] = {}
        for (name, _), entry in entries.items():
            topics.setdefault(name, []).append(entry)
        return [{**self.topic(name, **how), partitions: listed} for name, listed in topics.items()]

    def led_by(self, broker: int) -> list[Key]:
        return [key for key, log in self.logs.items() if log.leader == broker]

    def given(self) -> GivenMetadata:
        """Return a random part of the cluster's metadata, as files of the operator."""
        names = {topic_id: name for name, topic_id in TOPIC_IDS.items()}
        cluster = ClusterMetadata(min_isr=self.of(None, 2))
        if self.one_in(3):
            cluster = ClusterMetadata(names, self.changes, self._unfenced, self._lifecycle, min_isr=self.of(None, 1, 2))
        return GivenMetadata(
            names if self.one_in(2) else {},
            cluster,
            self.stored if self.one_in(3) else {},
            self.of(None, None, True, False),
            frozenset({"tiered"} if self.one_in(2) else ()),
            SIZES if self.one_in(2) else {},
        )

    def files(self) -> dict[str, str]:
        """Return the contents of files with the metadata of the cluster, by the option that takes them."""
        topics = [f"{topic_id} {name}" for name, topic_id in TOPIC_IDS.items()]
        if self.one_in(2):
            topics = [
                f"Topic: {name} TopicId: {topic_id} PartitionCount: {SIZES[name]} ReplicationFactor: 3 "
                f"Configs: {'remote.storage.enable=true' if name == 'tiered' else ''}"
                for name, topic_id in TOPIC_IDS.items()
            ]
        batches = ["topic,partition,baseOffset,lastOffset,size,createTimeMs,transactional,control,producerId"]
        for (name, number), stored in self.stored.items():
            batches += [
                f"{name},{number},{each.base},{each.last},{each.bytes},{each.created_us // 1000},"
                f"{str(each.transactional).lower()},{str(each.control).lower()},{each.producer_id}"
                for each in stored
            ]
        return {"--topics": "\n".join(topics), "--batches": "\n".join(batches), "--isr": "\n".join(self._records())}

    def _records(self) -> Iterator[str]:
        """Yield the records of a metadata log."""
        records: list[tuple[int, str, Fields]] = [
            (0, "TOPIC_RECORD", {"name": name, "topicId": topic_id}) for name, topic_id in TOPIC_IDS.items()
        ]
        for number, change in enumerate(self.changes):
            is_first = number < len(self.logs)
            fields: Fields = {"partitionId": change.partition, "topicId": change.topic, "leader": change.leader}
            if is_first:
                fields |= {"leaderEpoch": change.leader_epoch, "replicas": change.replicas}
            elif self.one_in(2):
                fields["leader"] = -2
            kind = "PARTITION_RECORD" if is_first else "PARTITION_CHANGE_RECORD"
            if change.deleted:
                kind, fields = "REMOVE_TOPIC_RECORD", {"topicId": change.topic}
            else:
                fields["isr"] = change.isr
            records.append((change.at_us, kind, fields))
        for event in self._lifecycle:
            fenced = {"brokerId": event.broker, "fenced": self.of(0, 1, -1), "inControlledShutdown": self.of(0, 1)}
            kind = self.of("REGISTER_BROKER_RECORD", "BROKER_REGISTRATION_CHANGE_RECORD", "UNFENCE_BROKER_RECORD")
            records.append((event.at_us, kind, fenced))
        for resource, name, value in ((2, "a", 2), (4, "", 1), (4, "3", 3), (2, "b", None)):
            records.append(
                (us(0), "CONFIG_RECORD", {"resourceType": resource, "resourceName": name, "name": "min.insync.replicas",
                                          "value": value})
            )  # fmt: skip
        for offset, (at_us, kind, fields) in enumerate(sorted(records, key=lambda record: record[0])):
            text = json.dumps({"type": kind, "version": 0, "data": fields})
            yield f"| offset: {offset} CreateTime: {at_us // 1000} keySize: -1 headerKeys: [] payload: {text}"

    # Produces

    def append(self, key: Key, size: int, count: int, *, transaction: int = -1, control: bool = False) -> int:
        """Append records, complete the fetches that wait for them, and return their first offset."""
        log = self.logs[key]
        base = log.end
        log.end += count
        log.batches.append((base, log.end - 1, size))
        created = int(self.ms + self.of(0, 0, 0, 1))
        batch = StoredBatch(base, log.end - 1, size, us(created), transaction >= 0, control, transaction)
        self.stored.setdefault(key, []).append(batch)
        for waiting in [each for each in self._waiting if key in each[2]["offsets"]]:
            if self.one_in(1.2):
                self._complete(waiting)
        return base

    def produce(self) -> None:
        broker, acks = self.of(*BROKERS), self.of(-1, -1, -1, 1, 0)
        keys = [key for key in self.logs if key[0] in ("a", "b", "tiered") and not self.one_in(3)]
        keys = [key for key in keys if self.logs[key].leader == broker or self.one_in(20)][: self.of(1, 1, 2, 4)]
        if not keys:
            return
        transaction = self.of(*self._open) if self._open and self.one_in(2) else None
        sizes, answers, error = {}, {}, 0
        for key in keys:
            log, size, count = self.logs[key], self.of(1, 50, 100, 100, 300), self.of(1, 1, 2, 5)
            error, base = 0, -1
            if log.leader != broker:
                error = 6
            elif self.one_in(15):
                error = self.of(3, 19, 20, 7, 7, 45, 10)
            if error in (0, 7, 20):
                is_retry = log.batches and self.one_in(20)
                producer = 100 + int(transaction[1:]) if transaction else -1
                base = log.batches[-1][0] if is_retry else self.append(key, size, count, transaction=producer)
                if transaction:
                    self._open[transaction].add(key)
            sizes[key] = {"index": key[1], "recordsSizeInBytes": size}
            answers[key] = {"index": key[1], "errorCode": error, "baseOffset": base}
        timeout = -1 if self.one_in(40) else self.of(30_000, 100, 1_500)
        remote = self.of(0.0, 0.7, 1.0, 3.0, 9.0) if acks == -1 else 0.0
        request: Fields = {"acks": acks, "timeoutMs": timeout, "topicData": self.by_topic(sizes, "partitionData")}
        if transaction:
            request["transactionalId"] = transaction
        response = {"responses": self.by_topic(answers, "partitionResponses")} if acks else None
        if error == 7 and acks == -1:
            remote = self.of(timeout, timeout + 0.5, timeout - 1, timeout + 250.0)
        self.write("PRODUCE", request, response, broker, remote, client=self.of("p", "q", None))

    # Fetches

    def _fetch_body(self, reader: tuple[int, str], session: Session, replica: int, version: int) -> Fields:
        """Return the body of the next fetch of a session, and record its offsets as known to the broker."""
        broker = reader[0]
        has_session = session.id >= 0
        is_first = not has_session or session.epoch == 0
        listed = session.offsets if is_first else {
            key: offset for key, offset in session.offsets.items() if session.known.get(key) != offset
        }  # fmt: skip
        gone = [] if is_first else [key for key in session.known if key not in session.offsets]
        session.known = dict(session.offsets)
        entries = {}
        for key, offset in listed.items():
            size = -1 if self.one_in(60) else self.of(200, 1_000, 1_048_576)
            entry = {"partition": key[1], "fetchOffset": offset, "partitionMaxBytes": size}
            if version >= 9:
                entry["currentLeaderEpoch"] = self.logs[key].epoch if self.one_in(1.1) else self.of(-1, -1, -2)
            if replica >= 0:
                entry["logStartOffset"] = self.logs[key].start if self.one_in(2) else self.of(-1, 0)
            entries[key] = entry
        body: Fields = {
            "maxWaitMs": 500 if replica >= 0 else self.of(0, 10, 100, 500),
            "minBytes": 1 if replica >= 0 else self.of(-1, 0, 1, 1, 1, 100, 100, 1_000),
            "topics": self.by_topic(entries, "partitions", fetch=True),
        }
        if version >= 3:
            body["maxBytes"] = -1 if self.one_in(40) else self.of(100, 10_000_000)
        if version >= 4:
            body["isolationLevel"] = int(replica < 0 and self._is_committed and self.one_in(2))
        if version >= 7:
            body |= {"sessionId": max(0, session.id), "sessionEpoch": session.epoch if has_session else -1}
            by_topic: dict[str, list[int]] = {}
            for topic, number in gone:
                by_topic.setdefault(topic, []).append(number)
            body["forgottenTopicsData"] = [
                {**self.topic(topic, fetch=True), "partitions": numbers} for topic, numbers in by_topic.items()
            ]
        if version >= 15 and replica >= 0:
            body["replicaState"] = {"replicaId": replica, "replicaEpoch": 1}
        elif version < 15:
            body["replicaId"] = replica
        if self._has_rack and replica < 0 and version >= 11:
            body["rackId"] = f"r{broker}"
        return body

    def _fetch(self, reader: tuple[int, str], replica: int, offsets: dict[Key, int], *, keeps: bool) -> None:
        """Start a fetch; it is written when it has been answered."""
        version = self.of(2, 4, 11, 11) if self.is_old and replica < 0 else (12 if self.is_old else self.of(13, 17))
        if self._has_ids:
            version = max(13, version)
        session = self._sessions.get(reader)
        if session is None or not keeps or version < 7:
            has_session = keeps and version >= 7
            session = self._sessions[reader] = Session(self._next_id if has_session else -1)
            self._next_id += 1
        session.offsets = offsets
        fetch: Fields = {
            "arrival": self.ms, "queue": self.of(0.0, 0.0, 0.3), "local": self.of(0.2, 1.0, 2.0), "replica": replica,
            "version": version, "offsets": dict(offsets), "body": self._fetch_body(reader, session, replica, version),
        }  # fmt: skip
        if replica >= 0:
            for key, offset in offsets.items():
                self._advance(key, replica, offset)
        has_data = any(self._end(key, replica) > offset for key, offset in offsets.items())
        if replica < 0 and ("tiered", 0) in offsets and has_data and self.one_in(2):
            # A wait for remote storage.
            self._answer(reader, fetch, self.of(0.5, 30.0, 30.0, 500.0, 500.2), is_empty=self.one_in(2))
            return
        deadline = self.ms + fetch["queue"] + fetch["local"] + fetch["body"]["maxWaitMs"]
        waiting = (deadline, reader, fetch)
        if has_data or fetch["body"]["maxWaitMs"] == 0 or self.one_in(15):
            self._answer(reader, fetch, 0.0 if has_data else self.of(0.0, 0.001))
        else:
            self._waiting.append(waiting)

    def _end(self, key: Key, replica: int) -> int:
        return self.logs[key].end if replica >= 0 else self.logs[key].mark

    def _advance(self, key: Key, replica: int, offset: int) -> None:
        log = self.logs[key]
        log.copied[replica], log.copied[log.leader] = offset, log.end
        mark = min([log.end, *(log.copied.get(member, 0) for member in log.isr)])
        if mark > log.mark:
            log.mark = mark
            for waiting in [each for each in self._waiting if key in each[2]["offsets"] and each[2]["replica"] < 0]:
                self._complete(waiting)

    def _complete(self, waiting: tuple[float, tuple[int, str], Fields]) -> None:
        deadline, reader, fetch = waiting
        handled = fetch["arrival"] + fetch["queue"] + fetch["local"]
        if waiting in self._waiting and self.ms > handled:
            self._waiting.remove(waiting)
            self._answer(reader, fetch, round(min(self.ms, deadline) - handled, 3))

    def expire(self) -> None:
        """Answer the fetches that have waited long enough, sometimes too late, as after a pause of their broker."""
        paused = self.of(*BROKERS, -1, -1)
        for waiting in [each for each in self._waiting if each[0] + 250 <= self.ms and each[1][0] == paused]:
            _, reader, fetch = waiting
            self._waiting.remove(waiting)
            handled = fetch["arrival"] + fetch["queue"] + fetch["local"]
            self._answer(reader, fetch, round(self.ms - handled + self.of(0.0, 0.3), 3))
        for waiting in [each for each in self._waiting if each[0] <= self.ms]:
            if self.one_in(1.2) or waiting[0] + 700 < self.ms:
                self._waiting.remove(waiting)
                late = self.of(0.0, 0.0, 0.4, -1.0, 220.0)
                self._answer(waiting[1], waiting[2], waiting[2]["body"]["maxWaitMs"] + late)

    def _answer(self, reader: tuple[int, str], fetch: Fields, remote: float, *, is_empty: bool = False) -> None:
        (broker, client), replica, session = reader, fetch["replica"], self._sessions.get(reader)
        answers: dict[Key, Fields] = {}
        whole = 0
        if session is not None and session.id >= 0 and session.epoch > 0 and self.one_in(20):
            whole = self.of(70, 71)
            del self._sessions[reader]
        for key, offset in fetch["offsets"].items() if not whole else ():
            log, end = self.logs[key], self._end(key, replica)
            error = self.of(1, 3, 6, 29, 74, 75, 100, 78, 56) if self.one_in(25) else 0
            if key[0] == "tiered" and self.one_in(8):
                error = 109 if replica >= 0 else self.of(0, -1)
            size = log.size(offset, end) if not error and not is_empty else 0
            if size == 0 and not error and not is_empty and self.one_in(2):
                continue
            data = {
                "partitionIndex": key[1],
                "errorCode": error,
                "highWatermark": -1 if error else log.mark,
                "recordsSizeInBytes": size,
            }
            if fetch["version"] >= 4:
                data["lastStableOffset"] = -1 if error else max(0, log.mark - self.of(0, 0, 1))
            if replica >= 0 and self.one_in(30) and offset:
                data |= {"divergingEpoch": {"epoch": 0, "endOffset": offset - self.of(0, 1)}, "recordsSizeInBytes": 0}
            if replica < 0 and self._has_rack and self.one_in(15):
                data["preferredReadReplica"] = self.of(*BROKERS)
            answers[key] = data
            if session is not None and data["recordsSizeInBytes"]:
                session.offsets = {**session.offsets, key: end}
        response: Fields = {"responses": self.by_topic(answers, "partitions", fetch=True)}
        if fetch["version"] >= 7:
            granted = session.id if session is not None and not whole and self.one_in(1.05) else 0
            response |= {"errorCode": whole, "sessionId": max(0, granted)}
            if session is not None and session.id >= 0:
                session.epoch += 1
                if granted == 0:
                    self._sessions.pop(reader, None)
        self.write(
            "FETCH", fetch["body"], response, broker, max(0.0, remote), arrival=fetch["arrival"],
            version=fetch["version"], queue=fetch["queue"], local=fetch["local"], client=client,
        )  # fmt: skip

    def follower_fetch(self) -> None:
        leader, replica = self.of(*BROKERS), self.of(*BROKERS)
        reader = (leader, f"broker-{replica}-fetcher-0")
        keys = self.led_by(leader)
        if replica == leader or not keys or any(each[1] == reader for each in self._waiting):
            return
        before = self._sessions[reader].offsets if reader in self._sessions else {}
        offsets = {key: before.get(key, self.logs[key].copied.get(replica, 0)) for key in keys}
        if before and self.one_in(40):
            key = self.of(*offsets)
            offsets[key] = max(0, offsets[key] - 1)
        self._fetch(reader, replica, offsets, keeps=not self.one_in(30))

    def consumer_fetch(self) -> None:
        client, broker = self.of("c", "d", "e"), self.of(*BROKERS)
        reader = (broker, client)
        keys = [key for key in self.logs if self.logs[key].leader == broker or (self._has_rack and self.one_in(2))]
        keys = [key for key in keys if key[0] in ("a", "b", "tiered")]
        if not keys or any(each[1] == reader for each in self._waiting):
            return
        before = self._sessions[reader].offsets if reader in self._sessions else {}
        offsets = {}
        for key in keys if client == "d" else [self.of(*keys)]:
            mark = self.logs[key].mark
            offsets[key] = before[key] if key in before and self.one_in(1.1) else self.of(mark, mark, mark, 0, mark - 1)
        self._fetch(reader, -1, offsets, keeps=client == "d")

    # The cluster

    def _note_change(self, key: Key, log: Log, ms: float, *, deleted: bool = False) -> None:
        place = (us(ms), TOPIC_IDS[key[0]], key[1], GIVEN)
        change = PartitionChange(*place, log.leader, log.epoch, BROKERS, tuple(log.isr))
        self.changes.append(PartitionChange(*place, deleted=True) if deleted else change)

    def metadata(self) -> None:
        topics = []
        for name in [name for name in SIZES if self.one_in(2)]:
            partitions = [
                {
                    "errorCode": self.of(0, 0, 0, 5) if self.one_in(8) else 0,
                    "partitionIndex": number,
                    "leaderId": log.leader,
                    "leaderEpoch": log.epoch if not self.one_in(9) else -1,
                    "replicaNodes": list(BROKERS),
                    "isrNodes": log.isr,
                }
                for (topic, number), log in self.logs.items()
                if topic == name
            ]
            named = {"name": name, "topicId": TOPIC_IDS[name]} if not self.is_old else {"name": name}
            topics.append({"errorCode": 3 if self.one_in(15) else 0, **named, "partitions": partitions})
        api = "METADATA" if self.one_in(1.2) else "DESCRIBE_TOPIC_PARTITIONS"
        self.write(api, {"topics": None}, {"topics": topics}, self.of(*BROKERS))

    def move(self) -> None:
        """Change the leader or the in-sync set of a partition, as the controller or the leader does."""
        key = self.of(*self.logs)
        log = self.logs[key]
        arrival = self.ms
        if self.one_in(3):
            log.leader, log.epoch = self.of(*BROKERS), log.epoch + 1
            if log.leader not in log.isr:
                log.isr = [*log.isr, log.leader]
            log.end = max(log.mark, log.end - self.of(0, 0, 1))
            log.batches = [batch for batch in log.batches if batch[1] < log.end]
        elif len(log.isr) > 1 and self.one_in(2):
            log.isr = [broker for broker in log.isr if broker == log.leader or self.one_in(2)]
        else:
            log.isr = list(BROKERS)
        self._note_change(key, log, self.ms)
        if self.one_in(1.5):
            partition = {
                "partitionIndex": key[1], "errorCode": 6 if self.one_in(10) else 0, "leaderId": log.leader,
                "leaderEpoch": log.epoch, "isr": log.isr,
            }  # fmt: skip
            answer = {
                "errorCode": 41 if self.one_in(10) else 0,
                "topics": self.by_topic({key: partition}, "partitions"),
            }
            api = "ALTER_ISR" if self.is_old else "ALTER_PARTITION"
            self.write(api, {}, answer, 2, listener="CONTROLLER", arrival=arrival, client=f"broker-{log.leader}")

    def lifecycle(self) -> None:
        broker, code = self.of(*BROKERS), 36 if self.one_in(8) else 0
        if self.one_in(2):
            request = {"brokerId": broker, **({"previousBrokerEpoch": self.of(-1, 4)} if self.one_in(2) else {})}
            self.write("BROKER_REGISTRATION", request, {"errorCode": code}, 2, listener="CONTROLLER")
            self._lifecycle.append(LifecycleEvent(us(self.ms), broker, "registered"))
        else:
            answer = {"errorCode": code, "shouldShutDown": self.one_in(2)}
            self.write("BROKER_HEARTBEAT", {"brokerId": broker}, answer, 2, listener="CONTROLLER")
            self._lifecycle.append(LifecycleEvent(us(self.ms), broker, self.of("may stop", "fenced", "stopping")))
        self._unfenced.append(BrokerUnfenced(us(self.ms + self.of(0, 30)), broker))

    def administer(self) -> None:
        broker, names = self.of(*BROKERS), [name for name in ("a", "b", "tiered") if self.one_in(2)]
        api = self.of("CREATE_TOPICS", "CREATE_PARTITIONS", "INCREMENTAL_ALTER_CONFIGS", "DESCRIBE_CONFIGS",
                      "DELETE_TOPICS", "UPDATE_METADATA", "API_VERSIONS")  # fmt: skip
        settings = [{"name": "remote.storage.enable", "value": "true"}, {"name": "min.insync.replicas", "value": "2"}]
        code = 36 if self.one_in(5) else 0
        if api in ("CREATE_TOPICS", "CREATE_PARTITIONS"):
            request: Fields = {
                "topics": [{"name": name, self.of("count", "numPartitions"): self.of(-1, 2)} for name in names],
                "timeoutMs": self.of(100, 1_000),
            }
            if self.one_in(5):
                request["validateOnly"] = self.one_in(2)
            answers = [
                {"name": name, "errorCode": code, "configs": settings if name == "tiered" else []} for name in names
            ]
            if self.one_in(2):
                answers = [{**answer, "numPartitions": self.of(1, 3)} for answer in answers]
            answer = {"topics" if api == "CREATE_TOPICS" else "results": answers}
            self.write(api, request, answer, broker, self.of(0.0, 5.0), listener=self.of("PLAINTEXT", "CONTROLLER"))
        elif api == "DESCRIBE_CONFIGS":
            results = [
                {"resourceType": 2, "resourceName": name, "configs": settings} for name in names if name == "tiered"
            ]
            self.write(api, {}, {"results": results}, broker)
        elif api == "INCREMENTAL_ALTER_CONFIGS":
            groups = [
                {"resourceType": 32, "resourceName": self.of("modern", "shared"), "configs": [
                    {"name": "consumer.session.timeout.ms", "configOperation": self.of(0, 1), "value": "45000"},
                    {"name": "share.record.lock.duration.ms", "configOperation": self.of(0, 0, 1), "value": "15000"},
                    {"name": "share.auto.offset.reset", "configOperation": 0, "value": self.of("earliest", "PT1H")},
                    {"name": "share.isolation.level", "configOperation": 0, "value": "read_committed"},
                ]}
            ]  # fmt: skip
            refused = [{"resourceName": groups[0]["resourceName"], "errorCode": code}]
            self.write(api, {"resources": groups}, {"responses": refused}, broker)
        elif api == "DELETE_TOPICS" and self.one_in(4):
            name = self.of("b", "gone")
            self.write(api, {}, {"responses": [{"name": name, "errorCode": code}]}, broker)
            if name == "b" and not code:
                self._note_change(("b", 0), self.logs["b", 0], self.ms, deleted=True)
        elif api == "UPDATE_METADATA" and self.is_old and self.one_in(2):
            states = [
                {"topicName": name, "partitionIndex": number, "leader": log.leader, "leaderEpoch": log.epoch,
                 "isr": log.isr, "replicas": list(BROKERS)}
                for (name, number), log in self.logs.items() if name in names
            ]  # fmt: skip
            grouped = {"topicStates": [{"topicName": each["topicName"], "partitionStates": [each]} for each in states]}
            self.write(api, self.of({"ungroupedPartitionStates": states}, grouped), {}, broker)
        elif api == "API_VERSIONS":
            least = self.of(0, 4) if not self.is_old else 0
            self.write(api, {}, {"apiKeys": [{"apiKey": self.of(1, 1, 0), "minVersion": least}]}, broker)

    def delete_records(self) -> None:
        key = self.of(*self.logs)
        log, offset = self.logs[key], self.of(-1, 0, 1, 2)
        if offset <= log.mark:
            log.start = max(log.start, log.mark if offset < 0 else offset)
        trim = {key: {"partitionIndex": key[1], "offset": offset}}
        answer = {key: {"partitionIndex": key[1], "errorCode": self.of(0, 0, 0, 7, 6)}}
        self.write(
            "DELETE_RECORDS", {"timeoutMs": self.of(-1, 100), "topics": self.by_topic(trim, "partitions")},
            {"topics": self.by_topic(answer, "partitions")}, log.leader, self.of(0.0, 4.0, 100.0, 330.0),
        )  # fmt: skip

    def list_offsets(self) -> None:
        keys = [key for key in self.logs if key[0] in ("a", "tiered") and self.one_in(1.5)]
        code, timeout = self.of(0, 0, 0, 7, 3), self.of(0, 0, 800)
        asked = {key: {"partitionIndex": key[1], "timestamp": self.of(0, 5, -1, -2, -4)} for key in keys}
        answer = {key: {"partitionIndex": key[1], "errorCode": code, "offset": self.of(-1, 0, self.logs[key].mark)}
                  for key in keys}  # fmt: skip
        request = {"isolationLevel": self.of(0, 1), "topics": self.by_topic(asked, "partitions")}
        self.write(
            "LIST_OFFSETS", {**request, "timeoutMs": timeout} if timeout else request,
            {"topics": self.by_topic(answer, "partitions")}, self.of(*BROKERS), self.of(0.0, 3.0, 99.0, 100.0, 801.0),
        )  # fmt: skip

    # Transactions

    def begin(self) -> None:
        number = self.below(3)
        name = f"x{number}"
        code = 51 if self.one_in(6) else 0
        request = {"transactionalId": name, "transactionTimeoutMs": self.of(10_000, 60_000)}
        answer = {"errorCode": code, "producerId": -1 if code else 100 + number}
        self.write("INIT_PRODUCER_ID", request, answer, self.logs[STATE, 0].leader, self.of(0.0, 2.0))
        if self.one_in(2):
            self.append((STATE, 0), 80, 1)
        if not code:
            self._open.setdefault(name, set())

    def add_partitions(self) -> None:
        if not self._open:
            return
        name, key, code = self.of(*self._open), self.of(*self.logs), self.of(0, 0, 0, 51)
        named = self.topic(key[0]) if self.one_in(2) else {"name": key[0]}
        producer, topics = 100 + int(name[1:]), [{**named, "partitions": [key[1]]}]
        results = [{**named, "resultsByPartition": [{"partitionIndex": key[1], "partitionErrorCode": code}]}]
        if self.is_old:
            request: Fields = {"transactionalId": name, "producerId": producer, "topics": topics}
            answer: Fields = {"results": results}
        elif self.one_in(2):
            request = {"v3AndBelowTransactionalId": name, "v3AndBelowProducerId": producer, "v3AndBelowTopics": topics}
            answer = {"resultsByTopicV3AndBelow": results}
        else:
            one = {"transactionalId": name, "producerId": producer, "topics": topics, "verifyOnly": self.one_in(4)}
            request = {"transactions": [one]}
            answer = {"resultsByTransaction": [{"transactionalId": name, "topicResults": results}]}
        self.write("ADD_PARTITIONS_TO_TXN", request, answer, self.logs[STATE, 0].leader, self.of(0.0, 1.0))
        if self.one_in(2):
            self.append((STATE, 0), 90, self.of(1, 1, 2))

    def end(self) -> None:
        if not self._open:
            return
        name, commits = self.of(*self._open), self.one_in(2)
        keys, producer = self._open.pop(name), 100 + int(name[1:])
        request = {"transactionalId": name, "producerId": producer, "committed": commits}
        self.write("END_TXN", request, {"errorCode": 0}, self.logs[STATE, 0].leader, self.of(0.0, 1.0))
        self.advance()
        for broker in BROKERS:
            led = [key for key in sorted(keys) if self.logs[key].leader == broker]
            led += [(OFFSETS, 0)] if self.logs[OFFSETS, 0].leader == broker and self.one_in(3) else []
            if not led:
                continue
            codes = {key: self.of(7, 20, 6) if self.one_in(10) else 0 for key in led}
            for key in led:
                self.append(key, 78, 1, transaction=producer, control=True)
            topics = [{"name": name, "partitionIndexes": [number]} for name, number in led]
            other = [{"producerId": 999, "transactionResult": True, "topics": topics[:1]}] if self.one_in(4) else []
            marker = {"producerId": producer, "transactionResult": commits, "topics": topics}
            answers = [
                {"name": key[0], "partitions": [{"partitionIndex": key[1], "errorCode": codes[key]}]} for key in led
            ]
            answer = {"markers": [{"producerId": producer, "topics": answers}]}
            self.write("WRITE_TXN_MARKERS", {"markers": [marker, *other]}, answer, broker, self.of(0.0, 2.0, 7.0))
