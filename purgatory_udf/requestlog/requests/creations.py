"""Topics that a ZooKeeper controller creates, or grows: whoever asks waits in its purgatory `topic`.

Kafka up to 3.9: `ZkAdminManager.createTopics` and `.createPartitions` park a DelayedCreatePartitions until the broker's
metadata name a leader of each partition of each topic without an error. A KRaft broker passes the request on.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.requestlog.cluster.context import Context
from purgatory_udf.requestlog.lines import error_codes as errors
from purgatory_udf.requestlog.lines.request import Request
from purgatory_udf.requestlog.requests.operation import LoggedOperation, operation
from purgatory_udf.requestlog.requests.recorded import recorded_creation

CREATIONS = frozenset({"CREATE_TOPICS", "CREATE_PARTITIONS"})
# What a topic has been made in spite of.
_MADE = (errors.NONE, errors.REQUEST_TIMED_OUT)


def read_creation(request: Request, context: Context) -> LoggedOperation:
    body, answer = request.body, request.answer or {}
    answers = {str(topic["name"]): topic for topic in answer.get("topics") or answer.get("results") or []}
    codes = {name: int(topic.get("errorCode", 0)) for name, topic in answers.items()}
    made = [] if body.get("validateOnly") else body.get("topics") or []
    topics = [
        {"topic": name, "partitions": _partitions(asked, answers.get(name, {}), context)}
        for asked in made
        for name in [str(asked["name"])]
        if codes.get(name, errors.NONE) in _MADE
    ]
    event = {
        "time_us": request.local_us,
        "type": "create_topics",
        "timeout_ms": int(body.get("timeoutMs", body.get("timeout", 0))),
        "topics": topics,
    }
    return operation(request, event, recorded_creation(request, codes.values()))


def _partitions(asked: dict[str, Any], answered: dict[str, Any], context: Context) -> int:
    """How many the topic has then. Where neither side says, as many as anybody was seen to use."""
    said = (answered.get("numPartitions", -1), asked.get("count", asked.get("numPartitions", -1)))
    known = context.partition_counts.get(str(asked["name"]), 1)
    assigned = len(asked.get("assignments") or ())
    return next((int(number) for number in said if number and int(number) > 0), assigned or known)
