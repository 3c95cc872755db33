"""The answers of `explain`: the story of an operation, of a request, of a group, or of a member of a group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from purgatory_udf.answers.evidence import Evidence, collect
from purgatory_udf.answers.operation_story import delivery_text, moment, story
from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.common.console import counted, request_label
from purgatory_udf.common.errors import UserError

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Session

_RECORD = re.compile(r"(?P<group>.+)/(?P<topic>[^/]+)-(?P<partition>\d{1,9}):(?P<offset>\d{1,18})", re.DOTALL)
_ALL_TIMES = {"from_us": -(1 << 62), "until_us": 1 << 62}
_NO_LIMIT = (1 << 31) - 1
# Maximum number of request ids in an error, and of partitions in a list.
_SHOWN_NAMES = 5
_OF_GROUPS, _OF_MEMBERS = ("join", "initial_join", "sync"), ("heartbeat", "session", "reconciliation")


@dataclass(frozen=True)
class Question:
    """An operation, a request, a group, or a client's expired operations; exactly one of these fields is set.

    `request_id` may be a suffix of an id, if no other request's id has this suffix. `member` is the member ID or client
    ID of a member of a consumer group (KIP-848), alone or with its `group`. `record` is a record of a share group, as
    `GROUP/TOPIC-PARTITION:OFFSET`.
    """

    operation: int | None = None
    request_id: str | None = None
    group: str | None = None
    client: str | None = None
    member: str | None = None
    record: str | None = None

    def __post_init__(self) -> None:
        group = self.group if self.member is None else self.member
        given = (self.operation, self.request_id, group, self.client, self.record)
        if sum(each is not None for each in given) != 1:
            raise UserError(
                "give one of --operation ID, --request-id ID, --group ID, --member ID, --client ID, --record RECORD"
            )
        if self.operation is not None and not 0 <= self.operation < 2**63:
            raise UserError(f"--operation {self.operation}: expected an operation_id, an integer from 0 to 2^63 - 1")
        if self.record is not None and not _RECORD.fullmatch(self.record):
            raise UserError(f"--record {self.record}: expected GROUP/TOPIC-PARTITION:OFFSET, such as workers/jobs-0:15")


def explain(session: Session, out: str, question: Question, top: int = 20) -> list[str]:
    """Return the story of an operation, request, group or client as lines.

    Args:
        session: Spark session or backend that reads the tables.
        out: Folder of the replay.
        question: What to explain.
        top: Maximum number of operations of a request or client, or of changes of a group.

    Raises:
        UserError: The tables have nothing about the subject, or the end of a request's id is ambiguous.
    """
    tables = RunTables(session, out)
    if question.member is not None:
        lines = member_story(tables, question.group or "", question.member, top)
        if not lines:
            raise UserError(f"{out}: no member {question.member} of a consumer group (KIP-848) found")
        return lines
    if question.record is not None:
        lines = record_story(tables, question.record)
        if not lines:
            raise UserError(f"{out}: no ended delivery of record {question.record} found")
        return lines
    if question.group is not None:
        lines = group_story(tables, question.group, top)
        if not lines:
            raise UserError(f"{out}: no state changes of group {question.group} found")
        return lines
    if question.operation is not None:
        what, ids = f"operation {question.operation}", [question.operation]
    elif question.client is not None:
        what = f"expired operation of client {question.client}"
        ids = [row["operation_id"] for row in tables.rows("explain/expired", client=question.client, top=top + 1)]
    else:
        what = f"request {question.request_id}"
        ids = _of_request(tables, question.request_id or "", top)
    collected = collect(tables, ids[:top])
    if not collected:
        raise UserError(f"{out}: no {what} found")
    for evidence in collected:
        _add_group_changes(tables, evidence)
    stories = [[*story(evidence), *_place(evidence)] for evidence in collected]
    stories += [[f"… and more operations; use --top to show more than {top}"]] if len(ids) > top else []
    return [line for lines in stories for line in ["", *lines]][1:]


def _of_request(tables: RunTables, request_id: str, top: int) -> list[int]:
    """Return the ids of at most `top` + 1 operations of a request, given its id or the end of its id.

    Raises:
        UserError: The ids of several requests end with it.
    """
    rows = tables.rows("explain/operations", request_id=request_id, top=_NO_LIMIT if request_id else 0)
    exact = [row for row in rows if row["request_id"] == request_id]
    names = list(dict.fromkeys(row["request_id"] for row in rows))
    if not exact and len(names) > 1:
        shown = ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")
        raise UserError(
            f"--request-id {request_id}: {len(names):,} requests end with it ({shown}); give a longer part of the id"
        )
    return [row["operation_id"] for row in exact or rows][: top + 1]


def _place(evidence: Evidence) -> list[str]:
    """Return a line with the full request id, if the story shows only a short form of it; otherwise no line."""
    row = evidence.end or evidence.request or {}
    request_id = row.get("request_id") or ""
    return [] if request_label(request_id) == request_id else [f"  request id: {request_id}"]


def _add_group_changes(tables: RunTables, evidence: Evidence) -> None:
    """Add the state changes of the operation's group between its start and its end."""
    end = evidence.end
    if end is None or end["kind"] not in (*_OF_GROUPS, *_OF_MEMBERS):
        return
    # The key of an operation of a member is the group and the member.
    group = evidence.request["group"] if evidence.request else None if end["kind"] in _OF_MEMBERS else end["key"]
    if group:
        within = {"from_us": end["started_us"], "until_us": end["ended_us"]}
        evidence.changes = [*tables.rows("explain/group_changes", group=group, top=_NO_LIMIT, **within)]


def record_story(tables: RunTables, record: str) -> list[str]:
    """Return the deliveries of a record to a share group, or nothing if there are none."""
    place = _RECORD.fullmatch(record)
    assert place is not None
    numbers = {name: int(place[name]) for name in ("partition", "offset")}
    rows = tables.rows("explain/record", group=place["group"], topic=place["topic"], **numbers)
    if not rows:
        return []
    lines = [
        f"  {moment(row['acquired_us'])}  {row['client_id'] or row['member_id']} (operation {row['operation_id']}) "
        f"acquired {delivery_text(row)}"
        for row in rows
    ]
    topic, share = f"{place['topic']}-{place['partition']}", f"share group {place['group']}"
    deliveries = "1 delivery" if len(rows) == 1 else f"{len(rows)} deliveries"
    return [f"record {place['offset']} of {topic}, {share}: {deliveries}", *lines]


def group_story(tables: RunTables, group: str, most: int) -> list[str]:
    """Return the story of a group: a title for each broker, its state changes, and its longest rebalance.

    Changes of the members of a consumer group (KIP-848) follow those of the group. There are at most `most` changes.
    """
    changes = tables.rows("explain/group_changes", group=group, top=most + 1, **_ALL_TIMES)
    of_members = tables.rows("explain/member_changes", group=group, member="", top=most + 1)
    lines: list[str] = []
    members: set[str] = set()
    broker = None
    number = "group epoch" if of_members else "generation"
    descriptions = _member_changes(of_members)
    # A request changes the group and members at the same time.
    places = sorted(
        [(change["broker"], change["at_us"], 0, change) for change in changes]
        + [(change["broker"], change["at_us"], 1, change) for change in of_members],
        key=lambda place: place[:3],
    )
    for at_broker, at_us, is_member, change in places[:most]:
        if at_broker != broker:
            broker, members = at_broker, set()
            lines.append(f"group {group} at broker {broker}")
        if is_member:
            lines.append(f"  {moment(at_us)}    member {_member_name(change)} {next(descriptions)}")
            continue
        now = set(change["members"] or [])
        lines.append(f"  {_change(change, number, now - members, members - now)}")
        members = now
    if len(places) > most:
        lines.append(f"  … and more changes; use --top to show more than {most}")
    held = tables.rows("explain/held_back", group=group, member="", top=1)
    return [*lines, *_longest(tables, group), *(f"  longest wait for partitions: {_held(row)}" for row in held)]


def member_story(tables: RunTables, group: str, member: str, most: int) -> list[str]:
    """Return the story of a member of a consumer group (KIP-848), by its member ID or client ID.

    The story has a title for each member, at most `most` changes, and the members that waited for its partitions.
    """
    changes = tables.rows("explain/member_changes", group=group, member=member, top=most + 1)
    lines: list[str] = []
    title = None
    for change, description in zip(changes[:most], _member_changes(changes), strict=False):
        head = f"member {_member_name(change)} of group {change['group']} at broker {change['broker']}"
        if head != title:
            title = head
            lines.append(head)
        lines.append(f"  {moment(change['at_us'])}  {description}")
    if len(changes) > most:
        lines.append(f"  … and more changes; use --top to show more than {most}")
    for row in tables.rows("explain/held_back", group=group, member=member, top=most) if changes else []:
        lines.append(f"  held partitions back: {_held(row)}")
    return lines


def _member_name(change: dict[str, Any]) -> str:
    client = change["client_id"]
    return f"{change['member_id']} ({client})" if client else str(change["member_id"])


def _member_changes(changes: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield a description of each change: state, epoch, partitions, and the members that the change waits for."""
    owned: dict[tuple[int, str, str], set[str]] = {}
    for change in changes:
        key = change["broker"], change["group"], change["member_id"]
        before, assigned = owned.get(key, set()), _names(change["assigned"])
        owned[key] = assigned
        if change["to_state"] == "REMOVED":
            yield f"{_removed(change)}; member epoch {change['epoch']}"
            continue
        came = "joined, " if change["member_id"] in change["reason"] else "taken over from the classic group, "
        parts = [f"{came if change['from_state'] is None else ''}{change['to_state']}"]
        parts[0] += f", member epoch {change['epoch']}" + (", classic protocol" if change["classic"] else "")
        revoking = _names(change["revoking"])
        gained, lost = assigned - before, before - assigned - revoking
        parts += [f"assigned {_join_partitions(gained)}"] if gained else []
        parts += [f"no longer {_join_partitions(lost)}"] if lost else []
        parts += [f"has to revoke {_join_partitions(revoking)}"] if revoking else []
        owners: dict[str, set[str]] = {}
        for each in change["held_by"] or []:
            owners.setdefault(each["member_id"], set()).add(f"{each['topic']}-{each['partition']}")
        parts += [f"waits for {_join_partitions(names)} of {owner}" for owner, names in sorted(owners.items())]
        yield "; ".join(parts)


# What the coordinator fenced a member for, by the kind of the timer that expired.
_FENCED = {
    "session": "it sent no heartbeat within the session timeout",
    "reconciliation": "it did not revoke its partitions within its rebalance timeout",
    "join": "it did not rejoin within its rebalance timeout",
    "sync": "it did not request its assignment within its rebalance timeout",
}


def _removed(change: dict[str, Any]) -> str:
    """Return the text for a change by which a member left its group: left, fenced or removed, with the reason."""
    reason = str(change["reason"])
    if reason == f"{change['member_id']} left":
        return "left"
    kind = reason.partition(" of ")[0]
    is_own = reason.startswith(f"{kind} of {change['member_id']} expired")
    return f"fenced: {_FENCED[kind]}" if is_own and kind in _FENCED else f"removed: {reason}"


def _held(row: dict[str, Any]) -> str:
    owner, waiting = (row[f"{who}client_id"] or row[f"{who}member_id"] for who in ("", "waiting_"))
    since = f"from {moment(row['started_us'])}, ended by: {row['ended_by']}"
    return f"{waiting} waited {row['held_ms']:,} ms for {_join_partitions(row['partitions'])} of {owner} {since}"


def _names(partitions: Iterable[dict[str, Any]] | None) -> set[str]:
    return {f"{part['topic']}-{part['partition']}" for part in partitions or []}


def _join_partitions(names: Iterable[str]) -> str:
    ordered = sorted(names, key=lambda name: (name.rpartition("-")[0], int(name.rpartition("-")[2])))
    more = f" and {len(ordered) - _SHOWN_NAMES} more" if len(ordered) > _SHOWN_NAMES else ""
    return ", ".join(ordered[:_SHOWN_NAMES]) + more


def _change(change: dict[str, Any], number: str, joined: set[str], left: set[str]) -> str:
    moves = "".join(
        f"; {word} {', '.join(sorted(members))}" for word, members in (("with", joined), ("without", left)) if members
    )
    state = f"{change['to_state']}, {number} {change['generation']}"
    members = counted(len(change["members"] or []), "member")
    return f"{moment(change['at_us'])}  {state}: {change['reason']}{moves} ({members})"


def _longest(tables: RunTables, group: str) -> list[str]:
    for row in tables.rows("explain/longest_rebalance", group=group):
        if row["length_ms"] is not None:
            waited = f"; {row['last_to_join']} was the last to join" if row["last_to_join"] else ""
            missing = f"; missing afterwards: {', '.join(row['missing'])}" if row["missing"] else ""
            return [
                f"  longest rebalance: {row['length_ms']:,} ms from {moment(row['started_us'])} "
                f"({row['reason']}){waited}{missing}"
            ]
    return []
