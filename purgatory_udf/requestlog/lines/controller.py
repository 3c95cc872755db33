"""Which requests are the controller's business: they wait for the metadata quorum, in no purgatory of a broker."""

from __future__ import annotations

from purgatory_udf.requestlog.lines.bodies import METADATA_TOPIC, METADATA_TOPIC_ID, is_metadata_fetch
from purgatory_udf.requestlog.lines.request import Request

LISTENER = "CONTROLLER"
# Raft clients call themselves so, whatever the listener's name.
RAFT_CLIENT = "raft-client-"
# Requests that only controllers answer, or that brokers pass on to them.
APIS = frozenset(
    {
        "VOTE",
        "BEGIN_QUORUM_EPOCH",
        "END_QUORUM_EPOCH",
        "DESCRIBE_QUORUM",
        "FETCH_SNAPSHOT",
        "BROKER_REGISTRATION",
        "BROKER_HEARTBEAT",
        "CONTROLLER_REGISTRATION",
        "ALTER_PARTITION",
        "ALLOCATE_PRODUCER_IDS",
        "UPDATE_RAFT_VOTER",
        "ENVELOPE",
        "ASSIGN_REPLICAS_TO_DIRS",
    }
)
# What a ZooKeeper controller parks in the purgatory `topic`, and a KRaft broker passes on.
_OF_TOPICS = frozenset({"CREATE_TOPICS", "CREATE_PARTITIONS", "DELETE_TOPICS", "ELECT_LEADERS"})


def left_to(request: Request) -> str:
    """The cause under which a request is counted that is none of the purgatories that an import tells of."""
    if is_controllers(request):
        return "controller"
    return "topic_admin" if request.api in _OF_TOPICS else "no_purgatory"


def is_controllers(request: Request) -> bool:
    return (
        request.forwarded
        or request.listener == LISTENER
        or request.api in APIS
        or (request.client_id or "").startswith(RAFT_CLIENT)
        or (request.api == "FETCH" and _is_of_metadata(request))
    )


def _is_of_metadata(request: Request) -> bool:
    if request.fetch is None:
        return is_metadata_fetch(request.body)
    topics = {partition.topic for partition in request.fetch[0].partitions}
    return METADATA_TOPIC_ID in topics or METADATA_TOPIC in topics
