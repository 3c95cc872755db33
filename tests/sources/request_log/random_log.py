"""Random request logs: those of `random_cluster`, with classic groups, consumer groups, share groups and bad lines."""

from __future__ import annotations

import struct
from base64 import b64encode
from typing import Any

from purgatory_udf.sources.request_log.internal_topics import partition_for
from tests.sources.request_log.random_cluster import BROKERS, OFFSETS, Fields, Key, RandomCluster

STEPS = 330
# A line of Kafka before 2.8.
OLD_TEXT = "[2019-03-01 10:00:00,123] DEBUG Completed request:RequestHeader(apiKey=FETCH) -- {}"


def _text(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


def _owned(*partitions: int) -> bytes:
    return struct.pack(">i", 1) + _text("a") + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)


def _subscription(version: int, *partitions: int) -> str:
    start = struct.pack(">hi", version, 1) + _text("a") + struct.pack(">i", 0)
    return b64encode(start + (_owned(*partitions) if version else b"")).decode()


class RandomLog(RandomCluster):
    """One random log with the lines of each broker, which `of_broker` returns."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._generation, self._members = 0, dict[str, int]()
        self._epoch, self._epochs = 0, dict[str, int]()
        self._share_epochs: dict[tuple[int, str], int] = {}
        self._held: list[tuple[int, str, Key, int, int]] = []
        self._acquired: dict[Key, int] = {}
        steps = [
            (self.produce, 12), (self.follower_fetch, 30), (self.consumer_fetch, 10), (self.metadata, self.of(0, 1)),
            (self.move, self.of(0, 1, 4)), (self.delete_records, self.of(0, 0, 2)),
            (self.list_offsets, self.of(0, 1, 5)),
            (self.administer, self.of(0, 1, 3)), (self.lifecycle, self.of(0, 0, 2)), (self._other, self.of(0, 1)),
        ]  # fmt: skip
        transacts, classic, modern, shares = (self.one_in(2) for _ in range(4))
        if transacts:
            steps += [(self.begin, 2), (self.add_partitions, 3), (self.end, 2), (self._commit_transaction, 1)]
        if classic:
            steps += [(self._join, 4), (self._sync, 3), (self._heartbeat, 3), (self._commit, 4), (self._leave, 1)]
        if modern and not self.is_old:
            steps += [(self._consumer_heartbeat, 12)]
        if shares and not self.is_old:
            often = self.of(1, 3)
            steps += [(self._share_fetch, 20 * often), (self._share_acknowledge, 6 * often),
                      (self._read_state, 5 * often), (self._write_state, 8 * often)]  # fmt: skip
        if classic and self.one_in(2):
            self._commit()
        for _ in range(STEPS):
            self.weighted(steps)()
            self.advance()
            self.expire()

    def of_broker(self, broker: int) -> list[str]:
        return [line for _, of, line in sorted(self.lines, key=lambda each: each[0]) if of == broker]

    # Classic groups

    def _coordinator(self, group: str) -> int:
        return self.logs[OFFSETS, partition_for(group, 2)].leader

    def _code(self) -> int:
        return int(self.of(14, 15, 16, 25, 27, 22)) if self.one_in(8) else 0

    def _store(self, group: str) -> None:
        if self.one_in(1.5):
            self.append((OFFSETS, partition_for(group, 2)), self.of(120, 300), self.of(1, 1, 2))

    def _group(self, api: str, request: Fields, response: Fields, remote: float, **more: Any) -> None:
        broker = self._coordinator("classic")
        if self.one_in(12):
            broker, response, remote = self.of(*BROKERS), {**response, "errorCode": 16}, 0.0
        if response["errorCode"] in (14, 15, 16) and self.one_in(2):
            remote = 0.0
        self.write(api, {"groupId": "classic", **request}, response, broker, remote, **more)

    def _join(self) -> None:
        number = self.below(3)
        member, code = f"m{number}", 26 if self.one_in(10) else (79 if self.one_in(10) else self._code())
        session = self.of(6_000, 10_000) if code != 26 else self.of(100, 2_000_000)
        if not code:
            if member not in self._members or self.one_in(2):
                self._generation += 1
            self._members[member] = self._generation
        request: Fields = {
            "memberId": member if self.one_in(2) else "",
            "sessionTimeoutMs": session,
            "protocolType": self.of("consumer", "consumer", "connect"),
            "protocols": [{"name": "range", "metadata": _subscription(self.of(0, 1, 3), *range(self.below(3)))}],
        }
        if number == 2:
            request["groupInstanceId"] = "static"
            member = f"m2-{self.of(1, 2)}"
        if self.one_in(1.3):
            request["rebalanceTimeoutMs"] = self.of(1_000, 60_000)
        answer = {"errorCode": code, "generationId": -1 if code else self._generation, "memberId": member,
                  "leader": self.of("m0", "m1", "")}  # fmt: skip
        self._group("JOIN_GROUP", request, answer, self.of(0.0, 3.0, 100.0, 3_000.0), version=self.of(0, 5, 9))

    def _sync(self) -> None:
        member, code = f"m{self.below(3)}", self._code()
        request: Fields = {"generationId": self._generation, "memberId": member}
        if self.one_in(1.5):
            assignment = b64encode(struct.pack(">h", 1) + _owned(*range(self.below(3)))).decode()
            if self.one_in(8):
                assignment = self.of("AAE=", "?", "AAEAAAABAAl0")
            request["assignments"] = [{"memberId": member, "assignment": assignment}]
        self._group("SYNC_GROUP", request, {"errorCode": code}, self.of(0.0, 1.0, 4.0, 200.0, 250.0))
        if not code and "assignments" in request:
            self._store("classic")

    def _heartbeat(self) -> None:
        request = {"generationId": self._generation, "memberId": f"m{self.below(3)}"}
        answer = {"errorCode": self._code()}
        for _ in range(self.of(1, 1, 3)):
            self._group("HEARTBEAT", request, answer, 0.0 if self.is_old or self.one_in(2) else 0.5)

    def _leave(self) -> None:
        members = [member for member in ("m0", "m1", "m2-1") if self.one_in(2)]
        request: Fields = {"members": [{"memberId": member} for member in members]}
        answer: Fields = {
            "errorCode": self._code(),
            "members": [{"memberId": each, "errorCode": self._code()} for each in members],
        }
        if self.one_in(3):
            request, answer = {"memberId": "m1"}, {"errorCode": self._code()}
        elif members and self.one_in(3):
            members[0] = ""
            request["members"][0] |= {"groupInstanceId": "static"}
        for member in members:
            self._members.pop(member, None)
        self._group("LEAVE_GROUP", request, answer, self.of(0.0, 1.0))
        if not self._members:
            self._store("classic")

    def _commit(self, api: str = "OFFSET_COMMIT", **more: Any) -> None:
        group, code = self.of("classic", "classic", "other"), 7 if self.one_in(10) else self._code()
        keys = [key for key in self.logs if key[0] in ("a", "b") and self.one_in(2)]
        offsets = {key: {"partitionIndex": key[1], "committedOffset": self.logs[key].mark} for key in keys}
        answers = {key: {"partitionIndex": key[1], "errorCode": code} for key in keys}
        epoch = {self.of("generationId", "generationIdOrMemberEpoch"): self._generation} if self.one_in(1.3) else {}
        request = {"groupId": group, "memberId": "m1", **epoch, "topics": self.by_topic(offsets, "partitions"), **more}
        answer = {"topics": self.by_topic(answers, "partitions")}
        remote = self.of(0.0, 0.0, 1.0, 4.0, 100.0, 5_000.0, 5_001.0)
        self.write(api, request, answer, self._coordinator(group), remote, client=self.of("c", None))
        if keys and not code:
            self._store(group)

    def _commit_transaction(self) -> None:
        name = f"x{self.below(3)}"
        if self.one_in(2):
            self._commit("TXN_OFFSET_COMMIT", transactionalId=name)
        else:
            request = {"transactionalId": name, "producerId": 100, "groupId": "other"}
            self.write("ADD_OFFSETS_TO_TXN", request, {"errorCode": 0}, self.of(*BROKERS), self.of(0.0, 1.0))

    # Consumer groups

    def _consumer_heartbeat(self) -> None:
        number = self.below(3)
        member, group = f"u{number}", self.of("modern", "modern", "modern", "second")
        known = self._epochs.get(member, 0)
        epoch, code = self.of(known, known, known, known, 0, -1, -2), self.of(16, 25, 35, 110) if self.one_in(12) else 0
        if not code and ((epoch == 0 and self.one_in(1.3)) or self.one_in(6)):
            self._epoch += 1
        if not code:
            self._epochs[member] = self._epoch if epoch >= 0 else 0
        request: Fields = {"groupId": group, "memberId": member if self.one_in(1.1) else "", "memberEpoch": epoch}
        if epoch == 0 or self.one_in(8):
            request |= {"subscribedTopicNames": ["a"], "serverAssignor": self.of("uniform", None),
                        "rebalanceTimeoutMs": self.of(-1, 5_000), "topicPartitions": []}  # fmt: skip
        if self.one_in(10):
            request |= {"subscribedTopicRegex": self.of("a.*", ""), "instanceId": self.of("i", None)}
        answer: Fields = {"errorCode": code}
        if not code:
            answer |= {
                "memberId": member,
                "memberEpoch": max(epoch, 0) and self._epoch,
                "heartbeatIntervalMs": self.of(500, 500, 1_000),
            }
            if self.one_in(3):
                partitions = [{**self.topic("a"), "partitions": list(range(self.below(3)))}]
                answer["assignment"] = {"topicPartitions": partitions}
        self.write("CONSUMER_GROUP_HEARTBEAT", request, answer, self._coordinator(group), self.of(0.0, 1.0))

    # Share groups

    def _shared(self, request: Fields, member: str, epoch: int) -> Fields:
        return {"groupId": "shared", "memberId": member, "shareSessionEpoch": epoch, **request}

    def _acknowledgements(self, broker: int, member: str) -> dict[Key, Fields]:
        listed: dict[Key, Fields] = {}
        for each in [each for each in self._held if each[:2] == (broker, member)][: self.of(0, 1, 2)]:
            _, _, key, first, last = each
            self._held.remove(each)
            if self.one_in(3) and last > first:
                # A part of the records; the others stay acquired.
                part = first + self.below(last - first + 1)
                rest = [(first, part - 1), (part + 1, last)]
                self._held += [(broker, member, key, *each) for each in rest if each[0] <= each[1]]
                first = last = part
            kinds = [self.of(1, 1, 2, 3, 4)] if self.one_in(1.3) else [self.of(0, 1, 2) for _ in range(first, last + 1)]
            batch = {"firstOffset": first, "lastOffset": last, "acknowledgeTypes": kinds}
            listed.setdefault(key, {"partitionIndex": key[1], "acknowledgementBatches": []})
            listed[key]["acknowledgementBatches"].append(batch)
        return listed

    def _share_fetch(self) -> None:
        broker, member = self.of(*BROKERS), f"s{self.below(2)}"
        keys = [key for key in self.led_by(broker) if key[0] in ("a", "b")]
        if not keys:
            return
        place = broker, member
        epoch = self._share_epochs.get(place, self.of(0, 0, 3))
        listed: dict[Key, Fields] = {key: {"partitionIndex": key[1]} for key in keys if epoch == 0 or self.one_in(4)}
        if epoch and self.one_in(2):
            listed |= self._acknowledgements(broker, member)
        whole = self.of(122, 123, 133, 15) if self.one_in(12) else 0
        is_last = epoch > 0 and self.one_in(12)
        request = self._shared(
            {"maxWaitMs": self.of(0, 100, 500), "minBytes": self.of(-1, 1, 100), "maxBytes": self.of(-1, 10_000),
             "topics": self.by_topic(listed, "partitions")}, member, -1 if is_last else epoch,
        )  # fmt: skip
        if self.one_in(2):
            request |= {"maxRecords": self.of(1, 500), "batchSize": 500, "shareAcquireMode": self.of(0, 1)}
        if self.one_in(15):
            request["isRenewAck"] = True
        if epoch and self.one_in(10):
            request["forgottenTopicsData"] = [{**self.topic(keys[0][0]), "partitions": [keys[0][1]]}]
        answers: dict[Key, Fields] = {}
        for key in () if whole or is_last else keys:
            first, end = self._acquired.get(key, self.logs[key].start), self.logs[key].mark
            code = self.of(6, 15, 3) if self.one_in(15) else 0
            if (end <= first or code) and self.one_in(2):
                continue
            acquired = []
            if end > first and not code:
                last = min(end - 1, first + self.below(4))
                self._held.append((broker, member, key, first, last))
                self._acquired[key] = last + 1
                acquired = [{"firstOffset": first, "lastOffset": last, "deliveryCount": 1}]
            refusal = self.of(121, 7, 15, 69) if self.one_in(12) else 0
            answers[key] = {
                "partitionIndex": key[1],
                "errorCode": code,
                "acknowledgeErrorCode": refusal,
                "acquiredRecords": acquired,
            }
        answer: Fields = {"errorCode": whole, "responses": self.by_topic(answers, "partitions")}
        if self.one_in(1.3):
            answer["acquisitionLockTimeoutMs"] = self.of(1_000, 1_000, 30_000, 0)
        wait = request["maxWaitMs"]
        self.write(
            "SHARE_FETCH", request, answer, broker, self.of(0.0, 1.0, 9.0, max(0, wait - 1), wait), client=member
        )
        self._share_epochs[place] = 0 if whole or is_last else epoch + 1

    def _share_acknowledge(self) -> None:
        broker, member = self.of(*BROKERS), f"s{self.below(2)}"
        epoch = self._share_epochs.get((broker, member), 1)
        listed = self._acknowledgements(broker, member)
        is_last = self.one_in(4)
        code = 122 if self.one_in(12) else 0
        answers = {
            key: {"partitionIndex": key[1], "errorCode": self.of(121, 15, 6) if self.one_in(8) else 0} for key in listed
        }
        request = self._shared(
            {"topics": self.by_topic(listed, "partitions")}, member, -1 if is_last else max(1, epoch)
        )
        answer = {"errorCode": code, "responses": self.by_topic(answers, "partitions")}
        self.write("SHARE_ACKNOWLEDGE", request, answer, broker, self.of(0.0, 2.0, 5.0), client=member)
        self._share_epochs[broker, member] = 0 if is_last else epoch + 1

    def _batches(self, key: Key) -> list[Fields]:
        held = [each for each in self._held if each[2] == key][:2]
        ranges = [(first, last) for *_, first, last in held] if held and self.one_in(1.3) else [(0, self.below(3))]
        return [
            {
                "firstOffset": first,
                "lastOffset": last,
                "deliveryState": self.of(0, 0, 2, 3, 4),
                "deliveryCount": self.of(1, 2),
            }
            for first, last in ranges
        ]

    def _state(self, api: str, broker: int, request: Fields, answer: Fields) -> None:
        client = f"Persister-client-{broker}" if not self.one_in(10) else "other"
        coordinator = self.of(*BROKERS)
        self.write(api, {"groupId": "shared", **request}, answer, coordinator, self.of(0.0, 1.0, 3.0), client=client)

    def _read_state(self) -> None:
        key = self.of(*[key for key in self.logs if key[0] in ("a", "b")])
        code = self.of(15, 16) if self.one_in(5) else 0
        listed = {key: {"partition": key[1]}}
        result = {"partition": key[1], "errorCode": code, "startOffset": self.of(-1, 0, self.logs[key].start)}
        if self.one_in(2):
            result["stateBatches"] = self._batches(key)
        request = {"topics": self.by_topic(listed, "partitions")}
        answer = {"results": self.by_topic({key: result}, "partitions")}
        self._state("READ_SHARE_GROUP_STATE", self.logs[key].leader, request, answer)

    def _write_state(self) -> None:
        key = self.of(*[key for key in self.logs if key[0] in ("a", "b")])
        batches = self._batches(key)
        written = {
            "partition": key[1],
            "startOffset": self.of(-1, 0, batches[0]["firstOffset"]),
            "stateBatches": batches,
        }
        result = {"partition": key[1], "errorCode": self.of(15, 16) if self.one_in(5) else 0}
        request = {"topics": self.by_topic({key: written}, "partitions")}
        answer = {"results": self.by_topic({key: result}, "partitions")}
        self._state("WRITE_SHARE_GROUP_STATE", self.logs[key].leader, request, answer)

    # Other lines

    def _other(self) -> None:
        broker = self.of(*BROKERS)
        kind = self.below(7)
        if kind == 0:
            self.write("PRODUCE", {"acks": 1, "topicData": None}, {}, broker)
        elif kind == 1:
            self.write("FETCH", {"maxWaitMs": 1, "topics": [{"topic": "a"}]}, {}, broker)
        elif kind == 2:
            self.write("STREAMS_GROUP_HEARTBEAT", {"groupId": "streams"}, {"errorCode": 0}, broker)
        elif kind == 3:
            topics = [
                {
                    "topicId": "AAAAAAAAAAAAAAAAAAAAAQ",
                    "partitions": [{"partition": 0, "fetchOffset": 1, "partitionMaxBytes": 1}],
                }
            ]
            self.write(
                "FETCH",
                {"maxWaitMs": 1, "minBytes": 1, "topics": topics},
                {"responses": []},
                broker,
                client="raft-client-1",
            )
        elif kind == 4:
            texts = "[2026-11-21 02:54:27,702] INFO Rolled new log segment", "", "x {", OLD_TEXT
            self.write_text(broker, self.of(*texts))
        elif kind == 5:
            self.write_text(broker, 'Completed request:{"requestHeader":{}}')
        else:
            self.write("FIND_COORDINATOR", {"key": "g"}, {"errorCode": 0}, broker)
