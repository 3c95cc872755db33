"""Conversion of requests to a group's coordinator: each is an event at S.

Joins and syncs wait in a purgatory; a heartbeat does not, but the coordinator waits there for the next one.

The SYNC_GROUP of the group's leader is dated by its response: the group becomes stable when the assignment has been
stored and replicated, and the other members' syncs wait until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from purgatory_udf.sources.request_log import error_codes as errors
from purgatory_udf.sources.request_log.assumptions import MAX_COORDINATOR_QUEUE_US, Report
from purgatory_udf.sources.request_log.log_line import Request
from purgatory_udf.sources.request_log.request_bodies import topic_of
from purgatory_udf.sources.request_log.requests.partition_facts import CoordinatorAnswer
from purgatory_udf.sources.request_log.requests.recorded_operation import (
    LoggedOperation,
    logged_operation,
    recorded_group,
)

GROUP_APIS = frozenset({"JOIN_GROUP", "SYNC_GROUP", "HEARTBEAT", "LEAVE_GROUP", "OFFSET_COMMIT"})

# Heartbeats of newer group protocols: consumers (KIP-848), Streams (KIP-1071) and share groups (KIP-932). Their groups
# are left out, because a classic coordinator would refuse their commits for an unknown generation.
NON_CLASSIC_HEARTBEATS = frozenset({"CONSUMER_GROUP_HEARTBEAT", "STREAMS_GROUP_HEARTBEAT", "SHARE_GROUP_HEARTBEAT"})


def group_operations(
    request: Request, name: Callable[[str], str], report: Report, classic: bool, is_new: bool = False
) -> Iterator[LoggedOperation]:
    """Yield the operations of a request: one, or one for each member in a LEAVE_GROUP (version 3+).

    Args:
        request: A request of `GROUP_APIS`.
        name: Returns the name of a topic given by name or id.
        report: Counts requests that are left out or dated differently.
        classic: Whether the broker has a classic group coordinator.
        is_new: Whether it certainly has the new one.
    """
    body, answer = request.body, request.answer or {}
    if _is_refused(request, _error_code(request, answer), classic):
        report.count("not_coordinator")
        return
    for sub, event in enumerate(_events(request, body, answer, name)):
        code = _error_code(request, answer, sub)
        event["group"] = str(body["groupId"])
        if is_new:
            event["coordinator"] = "new"
        if request.api == "SYNC_GROUP" and event["leader"] and request.remote_us and not code:
            event["time_us"] = request.answered_us
            report.count("leader_sync_at_answer")
        else:
            event["time_us"] = request.start_us
        yield logged_operation(request, event, recorded_group(request, code), sub)


def _is_refused(request: Request, code: int, classic: bool) -> bool:
    """Return whether the broker refused a request before the group saw it.

    A join, sync or commit that waited was accepted, even if the group moved to another coordinator during the wait.
    From 4.0 on all requests wait in the coordinator's queue, but only for some milliseconds.
    """
    if code != errors.COORDINATOR_LOAD_IN_PROGRESS and request.api in ("JOIN_GROUP", "SYNC_GROUP", "OFFSET_COMMIT"):
        waited = request.remote_us > (0 if classic else MAX_COORDINATOR_QUEUE_US)
        return code in errors.REFUSED_BY_COORDINATOR and not waited
    return code in errors.REFUSED_BY_COORDINATOR


def coordinator_answers(request: Request, classic: bool) -> Iterator[CoordinatorAnswer]:
    """Yield what the response to a group's request shows about the broker as its coordinator."""
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
    request: Request, body: dict[str, Any], answer: dict[str, Any], name: Callable[[str], str]
) -> Iterator[dict[str, Any]]:
    """Yield the events of a request, without time and group."""
    member = {"member_id": str(body.get("memberId") or "")}
    if body.get("groupInstanceId"):
        member["group_instance_id"] = str(body["groupInstanceId"])
    if request.api == "JOIN_GROUP":
        yield _join_event(request, body, answer, member)
    elif request.api == "SYNC_GROUP":
        yield {
            "type": "sync_group",
            **member,
            "generation": int(body["generationId"]),
            "leader": bool(body.get("assignments")),
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
    """Return the event of a JOIN_GROUP; with the ids that the response assigned."""
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
