"""Cluster facts that requests carry: topic names, leadership, deletions, transactions, groups, broker lifecycle.

A coordinator appends a group to `__consumer_offsets` when the group leader's assignment arrives, when a static member
of a stable group restarts, and when the last member leaves (Kafka: `GroupMetadataManager.storeGroup`). A broker that
becomes the leader of the partition loads the latest record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.request_log import cluster_metadata as clusters
from purgatory_udf.sources.request_log.cluster_metadata import (
    HEARTBEAT,
    REGISTRATION,
    GroupSession,
    LifecycleEvent,
    PartitionChange,
    ShareSetting,
    TopicSize,
    lifecycle_events_in,
)
from purgatory_udf.sources.request_log.internal_topics import TransactionFacts
from purgatory_udf.sources.request_log.kafka_protocol import NO_TOPIC_ID
from purgatory_udf.sources.request_log.log_files import read_text
from purgatory_udf.sources.request_log.logged_request import MALFORMED, Request

# APIs with requests that make a coordinator store a group.
GROUP_STORE_APIS = frozenset({"JOIN_GROUP", "SYNC_GROUP", "LEAVE_GROUP"})
# Number of records kept per group. More than one, because an old coordinator may remain active for a while.
MAX_RECORDS = 8


@dataclass(slots=True)
class GroupRecord:
    """One stored record of a group, with members in the form of the event `group_loaded`."""

    at_us: int
    generation: int
    leader: str | None
    members: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class GroupHistory:
    """Derives stored group records from requests of `GROUP_STORE_APIS`, which must come in time order.

    `stored` has the latest records of each group, oldest first; `joined` the newest generation of each group and its
    members by id.
    """

    stored: dict[str, list[GroupRecord]] = field(default_factory=dict)
    joined: dict[str, tuple[int, dict[str, dict[str, Any]]]] = field(default_factory=dict)

    def read(self, request: Request) -> None:
        """Update the history with one request."""
        answer, group = request.answer or {}, str(request.body["groupId"])
        if answer.get("errorCode"):
            return
        if request.api == "JOIN_GROUP":
            self._add_member(group, request, answer)
        elif request.api == "SYNC_GROUP" and request.body.get("assignments"):
            self._store_assignment(group, request)
        elif request.api == "LEAVE_GROUP":
            for member_id in leaving_members(request.body, answer):
                self._remove_member(group, member_id, request.start_us)

    def at(self, group: str, at_us: int) -> GroupRecord | None:
        """Return the latest record of the group stored by `at_us`, or None."""
        return next((record for record in reversed(self.stored.get(group, ())) if record.at_us <= at_us), None)

    def _add_member(self, group: str, request: Request, answer: Mapping[str, Any]) -> None:
        generation, body = int(answer.get("generationId", -1)), request.body
        known = self.joined.get(group)
        if known is None or known[0] < generation:
            known = self.joined[group] = (generation, {})
        if known[0] == generation:
            session = int(body["sessionTimeoutMs"])
            member: dict[str, Any] = {
                "client_id": request.client_id,
                "member_id": str(answer["memberId"]),
                **({"group_instance_id": str(body["groupInstanceId"])} if body.get("groupInstanceId") else {}),
                "session_timeout_ms": session,
                "rebalance_timeout_ms": int(body.get("rebalanceTimeoutMs", session)),
                "protocols": [str(protocol["name"]) for protocol in body.get("protocols") or []],
            }
            replaced = next((known_id for known_id, of in known[1].items() if _is_earlier_id(of, member)), None)
            if replaced is None:
                known[1][member["member_id"]] = member
            else:
                self._replace_member(group, generation, replaced, member, request.answered_us)

    def _replace_member(self, group: str, generation: int, replaced: str, member: dict[str, Any], at_us: int) -> None:
        """Replace the member id `replaced` of a static member that has restarted by `member`, its fields after that.

        A stable group stores the change at once; any other group stores it when its leader's assignment arrives.
        """
        kept = (member if known_id == replaced else known for known_id, known in self.joined[group][1].items())
        members = {of["member_id"]: of for of in kept}
        self.joined[group] = (generation, members)
        last = self.stored.get(group, [])[-1:]
        if last and last[0].generation == generation and last[0].members:
            leader = member["member_id"] if last[0].leader == replaced else last[0].leader
            self._store(group, GroupRecord(at_us, generation, leader, list(members.values())))

    def _store_assignment(self, group: str, request: Request) -> None:
        generation, members = self.joined.get(group, (None, {}))
        if generation is not None and generation == int(request.body["generationId"]):
            leader = str(request.body.get("memberId") or "")
            self._store(group, GroupRecord(request.answered_us, generation, leader, list(members.values())))

    def _remove_member(self, group: str, member_id: str, at_us: int) -> None:
        generation, members = self.joined.get(group, (-1, {}))
        members.pop(member_id, None)
        if generation >= 0 and not members:
            self._store(group, GroupRecord(at_us, generation + 1, None))

    def _store(self, group: str, stored: GroupRecord) -> None:
        self.stored[group] = [*self.stored.get(group, ()), stored][-MAX_RECORDS:]

    def snapshot(self) -> dict[str, Any]:
        """Return the history as JSON values, from which `resumed` restores it."""
        return {
            "stored": {group: [asdict(record) for record in stored] for group, stored in self.stored.items()},
            "joined": {group: list(joined) for group, joined in self.joined.items()},
        }

    @classmethod
    def resumed(cls, state: dict[str, Any]) -> GroupHistory:
        """Restore a history from a `snapshot`."""
        return cls(
            {group: [GroupRecord(**record) for record in stored] for group, stored in state["stored"].items()},
            {group: (generation, members) for group, (generation, members) in state["joined"].items()},
        )


def _is_earlier_id(known: Mapping[str, Any], member: Mapping[str, Any]) -> bool:
    """Return whether `known` is the static member `member` under the member id from before its restart."""
    instance = member.get("group_instance_id")
    return (
        instance is not None
        and known.get("group_instance_id") == instance
        and known["member_id"] != member["member_id"]
    )


def leaving_members(body: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids of members that a LEAVE_GROUP request removed; from version 3 on it may have several.

    `answer` may be empty; with one, members with an error are left out.
    """
    if body.get("members") is None:
        yield str(body.get("memberId") or "")
        return
    for member in answer.get("members") or body["members"]:
        if not member.get("errorCode"):
            yield str(member.get("memberId") or "")


Key = tuple[str, int]

# APIs with responses that have both the id and the name of a topic.
TOPIC_ID_APIS = frozenset({"METADATA", "CREATE_TOPICS", "DESCRIBE_TOPIC_PARTITIONS", "DELETE_TOPICS"})

_DESCRIBED = re.compile(r"^\s*Topic:\s*(\S+)\s+TopicId:\s*(\S+)")
_PARTITION_COUNT = re.compile(r"\bPartitionCount:\s*(\d+)")
_TIERED = re.compile(r"\bConfigs:.*\b" + re.escape(clusters.REMOTE_STORAGE) + r"=true\b")
_PAIR = re.compile(r"^\s*([A-Za-z0-9_-]{22})[\s,;=:]+(\S+)\s*$")


def topic_names_in(request: Request) -> dict[str, str]:
    """Return the names of topics by topic id that the response of a request has; empty if it has none."""
    if request.api not in TOPIC_ID_APIS or not request.answer:
        return {}
    topics = request.answer.get("topics") or request.answer.get("responses") or []
    return {
        str(topic["topicId"]): str(topic["name"])
        for topic in topics
        if topic.get("topicId") and topic["topicId"] != NO_TOPIC_ID and topic.get("name")
    }


def topic_names_in_file(path: str | Path) -> dict[str, str]:
    """Read topic names by id from a file.

    Accepted are a JSON list of objects with `name` and `topicId`, a JSON object from id to name, the output of
    `kafka-topics.sh --describe`, and lines `id name`. Raises UserError for any other file.
    """
    text = read_text(path)
    try:
        names = (
            _names_from_json(json.loads(text))
            if text.lstrip()[:1] in ("[", "{")
            else _names_from_lines(text.splitlines())
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not a list of topics ({error}); expected JSON with topicId and name, or lines `id name`"
        ) from None
    if not names:
        raise UserError(f"{path}: no topic id found; expected JSON with topicId and name, or lines `id name`")
    return names


def tiered_topics_in_file(path: str | Path) -> frozenset[str]:
    """Return the topics with remote storage in the output of `kafka-topics.sh --describe`; none for other files."""
    lines = [line for line in read_text(path).splitlines() if _TIERED.search(line)]
    return frozenset(described[1] for line in lines if (described := _DESCRIBED.match(line)))


def topic_sizes_in_file(path: str | Path) -> dict[str, int]:
    """Return the numbers of partitions by topic in the output of `kafka-topics.sh --describe`, or in a JSON list.

    In a list, `partitions` has an entry for each partition, or is their number. Other files have no sizes.
    """
    text = read_text(path)
    if text.lstrip()[:1] in ("[", "{"):
        listed = json.loads(text)
        topics = listed if isinstance(listed, list) else []
        sizes = {str(topic["name"]): topic.get("partitions") for topic in topics}
        counts = {name: size if isinstance(size, int) else len(size or ()) for name, size in sizes.items()}
    else:
        pairs = ((_DESCRIBED.match(line), _PARTITION_COUNT.search(line)) for line in text.splitlines())
        counts = {described[1]: int(count[1]) for described, count in pairs if described and count}
    return {name: count for name, count in counts.items() if count > 0}


def _names_from_json(value: Any) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(topic_id): str(name) for topic_id, name in value.items()}
    return {str(topic["topicId"]): str(topic["name"]) for topic in value}


def _names_from_lines(lines: Iterable[str]) -> dict[str, str]:
    names = {}
    for line in lines:
        if described := _DESCRIBED.match(line):
            names[described[2]] = described[1]
        elif pair := _PAIR.match(line):
            names[pair[1]] = pair[2]
    return names


TOPIC_CREATION_APIS = frozenset({"CREATE_TOPICS", "CREATE_PARTITIONS"})
ALTER_CONFIGS = "INCREMENTAL_ALTER_CONFIGS"

# APIs with requests that carry cluster facts.
CLUSTER_APIS = frozenset(
    {
        "METADATA",
        "DESCRIBE_TOPIC_PARTITIONS",
        *TOPIC_CREATION_APIS,
        ALTER_CONFIGS,
        clusters.UPDATE_METADATA,
        "DELETE_TOPICS",
        "ALTER_PARTITION",
        "ADD_PARTITIONS_TO_TXN",
        "INIT_PRODUCER_ID",
        REGISTRATION,
        HEARTBEAT,
    }
    | GROUP_STORE_APIS
    | clusters.CONFIG_APIS
)


@dataclass(slots=True)
class ClusterFacts:
    """Collects cluster facts from requests, which must come in time order.

    Topics have the name or id that the requests contain. `zookeeper` is set by an UPDATE_METADATA request, which only
    ZooKeeper controllers send. `tiered` are topics with remote storage; `created` has the sizes of topics that were
    created or enlarged.
    """

    names: dict[str, str] = field(default_factory=dict)
    changes: list[PartitionChange] = field(default_factory=list)
    deletions: list[tuple[int, str]] = field(default_factory=list)
    min_isr: dict[str, int] = field(default_factory=dict)
    transactions: TransactionFacts = field(default_factory=TransactionFacts)
    groups: GroupHistory = field(default_factory=GroupHistory)
    lifecycle: list[LifecycleEvent] = field(default_factory=list)
    zookeeper: bool = False
    tiered: set[str] = field(default_factory=set)
    created: list[TopicSize] = field(default_factory=list)
    group_sessions: list[GroupSession] = field(default_factory=list)
    share_settings: list[ShareSetting] = field(default_factory=list)

    def read(self, request: Request) -> None:
        """Add the facts of one request; other requests are ignored."""
        # A malformed request is rejected when it is converted; here it only carries no facts.
        with suppress(*MALFORMED):
            if request.api in GROUP_STORE_APIS:
                self.groups.read(request)
                return
            self.zookeeper = self.zookeeper or request.api == clusters.UPDATE_METADATA
            self.lifecycle.extend(lifecycle_events_in(request))
            self.names.update(topic_names_in(request))
            self.changes.extend(clusters.changes_in(request))
            self.deletions.extend(clusters.deletions_in(request))
            for topic, size in clusters.min_isr_in(request):
                self.min_isr.setdefault(topic, size)
            self.tiered.update(clusters.tiered_topics_in(request))
            if request.api in TOPIC_CREATION_APIS:
                self.created.extend(clusters.created_sizes_in(request))
            if request.api == ALTER_CONFIGS:
                self.group_sessions.extend(clusters.group_sessions_in(request))
                self.share_settings.extend(clusters.share_settings_in(request))
            self.transactions.read(request)

    def changes_by_partition(self, name: Callable[[str], str]) -> dict[Key, list[PartitionChange]]:
        """Return the changes of each partition in time order; `name` maps topic names and ids to names."""
        by_partition: dict[Key, list[PartitionChange]] = {}
        for change in sorted(clusters.with_topic_names(self.changes, name), key=lambda change: change.at_us):
            by_partition.setdefault((change.topic, change.partition), []).append(change)
        for at_us, topic in self.deletions:
            _add_deletion(by_partition, name(topic), at_us)
        return by_partition

    def forget(self, before_us: int, name: Callable[[str], str]) -> None:
        """Merge the changes before `before_us` into one per partition; drop older deletions and facts of transactions.

        `name` maps the names and ids of topics to names, by which the changes then identify topics.
        """
        kept: list[PartitionChange] = []
        for changes in self.changes_by_partition(name).values():
            old = [change for change in changes if change.at_us < before_us]
            last = clusters.merge_changes(old)
            for change in [*([last] if last else []), *changes[len(old) :]]:
                if last is None or change is last or not change.repeats(last):
                    kept.append(change)
                    last = change
        self.changes = kept
        self.deletions = [deletion for deletion in self.deletions if deletion[0] >= before_us]
        self.transactions.forget(before_us)

    def snapshot(self) -> dict[str, Any]:
        """Return the facts as JSON values, from which `resumed` restores them."""
        return {
            "names": self.names,
            "changes": [asdict(change) for change in self.changes],
            "deletions": self.deletions,
            "min_isr": self.min_isr,
            "transactions": self.transactions.snapshot(),
            "groups": self.groups.snapshot(),
            "signs": list(map(list, self.lifecycle)),
            "zookeeper": self.zookeeper,
            "tiered": sorted(self.tiered),
            "created": self.created,
            "group_sessions": self.group_sessions,
            "share_settings": self.share_settings,
        }

    @classmethod
    def resumed(cls, state: dict[str, Any]) -> ClusterFacts:
        """Restore facts from a `snapshot`."""
        return cls(
            names=dict(state["names"]),
            changes=[clusters.change_from_json(change) for change in state["changes"]],
            deletions=[(at_us, topic) for at_us, topic in state["deletions"]],
            min_isr=dict(state["min_isr"]),
            transactions=TransactionFacts.resumed(state["transactions"]),
            groups=GroupHistory.resumed(state["groups"]),
            lifecycle=[LifecycleEvent(*sign) for sign in state.get("signs", ())],
            zookeeper=bool(state.get("zookeeper")),
            tiered=set(state["tiered"]),
            created=[TopicSize(*size) for size in state.get("created", ())],
            group_sessions=[GroupSession(*session) for session in state.get("group_sessions", ())],
            share_settings=[ShareSetting(*setting) for setting in state.get("share_settings", ())],
        )


def _add_deletion(changes_of: dict[Key, list[PartitionChange]], topic: str, at_us: int) -> None:
    """Add the deletion of a topic at `at_us` to each of its partitions, unless the partition has one already."""
    for key, changes in changes_of.items():
        if key[0] == topic and not any(change.deleted for change in changes):
            changes.append(PartitionChange(at_us, *key, clusters.REPORTED, deleted=True))
            changes.sort(key=lambda change: change.at_us)
