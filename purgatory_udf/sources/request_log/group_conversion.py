"""Conversion of requests to a group's coordinator: each becomes an event at time S, the start of its handling.

Joins and syncs wait in a purgatory. A heartbeat does not wait, but the coordinator waits in a purgatory for the next
one. From Kafka 4.0 on, S is the time at which the request enters the coordinator's queue.

The SYNC_GROUP of the group's leader is dated by its response: the group becomes stable when the assignment has been
stored and replicated, and the other members' syncs wait until then.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any

from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.assumptions import MAX_COORDINATOR_QUEUE_US, Report
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.fact_kinds import CoordinatorAnswer
from purgatory_udf.sources.request_log.kafka_protocol import topic_of
from purgatory_udf.sources.request_log.logged_request import (
    LoggedOperation,
    Request,
    logged_operation,
    recorded_group,
)

CONSUMER_HEARTBEAT = "CONSUMER_GROUP_HEARTBEAT"
GROUP_APIS = frozenset({"JOIN_GROUP", "SYNC_GROUP", "HEARTBEAT", "LEAVE_GROUP", "OFFSET_COMMIT", CONSUMER_HEARTBEAT})

# Heartbeats of Streams groups (KIP-1071) and share groups (KIP-932). Their groups are left out, because the replay
# would refuse their commits for an unknown generation.
LEFT_OUT_HEARTBEATS = frozenset({"STREAMS_GROUP_HEARTBEAT", "SHARE_GROUP_HEARTBEAT"})


def group_operations(request: Request, context: Context, report: Report) -> Iterator[LoggedOperation]:
    """Yield the operations of a request: one, or one for each member in a LEAVE_GROUP (version 3+).

    Args:
        request: A request of `GROUP_APIS`.
        context: Cluster facts.
        report: Counts requests that are left out or dated differently.
    """
    body, answer = request.body, request.answer or {}
    classic, is_new = context.has_classic_coordinator(request.broker), context.has_new_coordinator(request.broker)
    if _is_refused(request, _error_code(request, answer), classic):
        report.count("not_coordinator")
        return
    for sub, event in enumerate(_events(request, body, answer, context.name, is_new)):
        code = _error_code(request, answer, sub)
        event["group"] = str(body["groupId"])
        if is_new or request.api == CONSUMER_HEARTBEAT:
            event["coordinator"] = "new" if is_new else "old"
        if request.api == CONSUMER_HEARTBEAT:
            session_ms = context.group_session_ms(event["group"], request.start_us)
            event |= {} if session_ms is None else {"session_timeout_ms": session_ms}
        if request.api == "SYNC_GROUP" and event["leader"] and request.remote_us and not code:
            event["time_us"] = request.answered_us
            report.count("leader_sync_at_answer")
        else:
            event["time_us"] = request.start_us
        yield logged_operation(request, event, recorded_group(request, code), sub)


def _is_refused(request: Request, code: int, classic: bool) -> bool:
    """Return whether the broker refused a request with the error `code`, before the group saw it.

    `classic` is whether the broker has a classic coordinator.
    A join, sync or commit that waited was accepted, even if the group moved to another coordinator during the wait.
    From 4.0 on all requests wait in the coordinator's queue, but only for some milliseconds.
    """
    if code != errors.COORDINATOR_LOAD_IN_PROGRESS and request.api in ("JOIN_GROUP", "SYNC_GROUP", "OFFSET_COMMIT"):
        waited = request.remote_us > (0 if classic else MAX_COORDINATOR_QUEUE_US)
        return code in errors.REFUSED_BY_COORDINATOR and not waited
    return code in errors.REFUSED_BY_COORDINATOR


def coordinator_answers(request: Request, classic: bool) -> Iterator[CoordinatorAnswer]:
    """Yield the facts about the broker as coordinator that the response to a group's request shows."""
    code = _error_code(request, request.answer or {})
    if not _is_refused(request, code, classic):
        yield CoordinatorAnswer(request.start_us, errors.NONE)
        if code == errors.NOT_COORDINATOR:
            yield CoordinatorAnswer(request.answered_us, code)
    elif code in (errors.COORDINATOR_LOAD_IN_PROGRESS, errors.NOT_COORDINATOR):
        yield CoordinatorAnswer(request.start_us, code)


def _error_code(request: Request, answer: dict[str, Any], sub: int = 0) -> int:
    """Return the error code of a response: of the member `sub` for LEAVE_GROUP, the first error for OFFSET_COMMIT."""
    code = int(answer.get("errorCode", 0))
    if request.api == "OFFSET_COMMIT":
        codes = (
            int(partition["errorCode"]) for topic in answer.get("topics") or [] for partition in topic["partitions"]
        )
        return code or next((error for error in codes if error), errors.NONE)
    members = answer.get("members") or [] if request.api == "LEAVE_GROUP" else []
    return code or (int(members[sub].get("errorCode", 0)) if sub < len(members) else errors.NONE)


def _events(
    request: Request, body: dict[str, Any], answer: dict[str, Any], name: Callable[[str], str], is_new: bool
) -> Iterator[dict[str, Any]]:
    """Yield the events of a request without the fields `time_us` and `group`: one, or one for each leaving member.

    Args:
        request: A request of `GROUP_APIS`.
        body: Its body.
        answer: Its response; may be empty.
        name: Returns the name of a topic given by name or id.
        is_new: Whether the broker has the group coordinator of Kafka 4.0, so that subscriptions and assignments matter.
    """
    if request.api == CONSUMER_HEARTBEAT:
        yield _consumer_heartbeat(body, answer, name)
        return
    member = {"member_id": str(body.get("memberId") or "")}
    if body.get("groupInstanceId"):
        member["group_instance_id"] = str(body["groupInstanceId"])
    if request.api == "JOIN_GROUP":
        yield _join_event(request, body, answer, member) | (_subscription(body) if is_new else {})
    elif request.api == "SYNC_GROUP":
        yield {
            "type": "sync_group",
            **member,
            "generation": int(body["generationId"]),
            "leader": bool(body.get("assignments")),
            **(_assignments(body) if is_new else {}),
        }
    elif request.api == "HEARTBEAT":
        yield {"type": "heartbeat", **member, "generation": int(body["generationId"])}
    elif request.api == "OFFSET_COMMIT":
        generation = body.get("generationIdOrMemberEpoch", body.get("generationId", -1))
        yield {
            "type": "offset_commit",
            **member,
            "generation": int(generation),
            "partitions": [
                {
                    "topic": name(topic_of(topic)),
                    "partition": int(partition["partitionIndex"]),
                    "offset": int(partition["committedOffset"]),
                }
                for topic in body.get("topics") or []
                for partition in topic["partitions"]
            ],
        }
    elif body.get("members") is not None:
        for leaver in body["members"]:
            left = {"type": "leave_group", "member_id": str(leaver.get("memberId") or ""), "generation": -1}
            if leaver.get("groupInstanceId"):
                left["group_instance_id"] = str(leaver["groupInstanceId"])
            yield left
    else:
        yield {"type": "leave_group", **member, "generation": -1}


def _join_event(
    request: Request, body: dict[str, Any], answer: dict[str, Any], member: dict[str, str]
) -> dict[str, Any]:
    """Return the event of a JOIN_GROUP, with the ids that the response assigned."""
    session = int(body["sessionTimeoutMs"])
    event = {
        "type": "join_group",
        **member,
        "api_version": request.version,
        "session_timeout_ms": session,
        # Version 0 has no rebalance timeout; the session timeout is used.
        "rebalance_timeout_ms": int(body.get("rebalanceTimeoutMs", session)),
        "protocols": [str(protocol["name"]) for protocol in body.get("protocols") or []],
    }
    code = int(answer.get("errorCode", 0))
    if code in (errors.NONE, errors.MEMBER_ID_REQUIRED) and answer.get("memberId"):
        event["assigned_member_id"] = str(answer["memberId"])
    if code == errors.NONE and answer.get("leader"):
        event["leader_member_id"] = str(answer["leader"])
    return event


def _consumer_heartbeat(body: dict[str, Any], answer: dict[str, Any], name: Callable[[str], str]) -> dict[str, Any]:
    """Return the event of a CONSUMER_GROUP_HEARTBEAT, with the epoch and assignment of its response.

    Up to version 0 a joining member has no id; it gets the one in the response.
    """
    event: dict[str, Any] = {
        "type": "consumer_group_heartbeat",
        "member_id": str(body.get("memberId") or answer.get("memberId") or ""),
        "member_epoch": int(body["memberEpoch"]),
    }
    sent = {
        "group_instance_id": body.get("instanceId"),
        "subscribed_topics": body.get("subscribedTopicNames"),
        "subscribed_regex": body.get("subscribedTopicRegex"),
        "server_assignor": body.get("serverAssignor"),
        "owned": _by_topic(body.get("topicPartitions"), name),
    }
    event |= {field: value for field, value in sent.items() if value is not None}
    if body.get("rebalanceTimeoutMs", -1) >= 0:
        event["rebalance_timeout_ms"] = int(body["rebalanceTimeoutMs"])
    if answer.get("errorCode") == errors.NONE:
        event["assigned_epoch"] = int(answer["memberEpoch"])
        if answer.get("assignment") is not None:
            event["assigned"] = _by_topic(answer["assignment"].get("topicPartitions") or [], name)
    return event


def _by_topic(listed: list[dict[str, Any]] | None, name: Callable[[str], str]) -> list[dict[str, Any]] | None:
    """Return partitions by topic in the form of the contract, or None if the field was not sent."""
    if listed is None:
        return None
    return [
        {"topic": name(topic_of(topic)), "partitions": [int(number) for number in topic["partitions"]]}
        for topic in listed
    ]


def _subscription(body: dict[str, Any]) -> dict[str, Any]:
    """Return the topics and the owned partitions in the metadata of a consumer's join, if they can be decoded."""
    protocols = body.get("protocols") or []
    if body.get("protocolType") != "consumer" or not protocols:
        return {}
    try:
        reader = _MetadataReader(protocols[0]["metadata"])
        version = reader.number(2)
        fields: dict[str, Any] = {"subscribed_topics": [reader.text() for _ in range(reader.number(4))]}
        reader.skip_bytes()
        if version >= 1:
            fields["owned"] = reader.partitions()
    except _UNREADABLE:
        return {}
    return fields


def _assignments(body: dict[str, Any]) -> dict[str, Any]:
    """Return the assignment of each member in the leader's sync, if it can be decoded."""
    assignments = []
    try:
        for of_member in body.get("assignments") or []:
            reader = _MetadataReader(of_member["assignment"])
            reader.number(2)
            assignments.append({"member_id": str(of_member["memberId"]), "assigned": reader.partitions()})
    except _UNREADABLE:
        return {}
    return {"assignments": assignments} if assignments else {}


# Members of other protocol types, such as Connect workers, have metadata of another format.
_UNREADABLE = (ValueError, KeyError, TypeError, struct.error)


class _MetadataReader:
    """Reader of the metadata that clients of the classic protocol exchange (`ConsumerProtocol`), which is in base64."""

    def __init__(self, text: str) -> None:
        self._bytes, self._at = b64decode(text, validate=True), 0

    def number(self, size: int) -> int:
        """Read a signed number of 2 or 4 bytes."""
        (value,) = struct.unpack_from(">h" if size == 2 else ">i", self._bytes, self._at)
        self._at += size
        return int(value)

    def text(self) -> str:
        length = self.number(2)
        text = self._bytes[self._at : self._at + length].decode()
        if length < 0 or self._at + length > len(self._bytes):
            raise ValueError("a name is truncated")
        self._at += length
        return text

    def skip_bytes(self) -> None:
        length = self.number(4)
        self._at += max(0, length)

    def partitions(self) -> list[dict[str, Any]]:
        return [
            {"topic": self.text(), "partitions": [self.number(4) for _ in range(self.number(4))]}
            for _ in range(self.number(4))
        ]
