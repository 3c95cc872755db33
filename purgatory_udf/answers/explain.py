"""The questions of `explain`: the story of an operation, of a request, or of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from purgatory_udf.answers.evidence import Evidence, collect
from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.answers.story import moment, story
from purgatory_udf.common.console import counted, request_label
from purgatory_udf.common.errors import UserError

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Session

_ALL_TIMES = {"from_us": -(1 << 62), "until_us": 1 << 62}
_NO_LIMIT = (1 << 31) - 1
# Maximum number of request ids in an error.
_SHOWN_NAMES = 5
_OF_GROUPS, _OF_MEMBERS = ("join", "initial_join", "sync"), ("heartbeat", "session", "reconciliation")


@dataclass(frozen=True)
class Question:
    """An operation, a request, a group, or a client's expired operations; exactly one of the fields is set.

    `request_id` may be a suffix of an id, if no other request's id has this suffix.
    """

    operation: int | None = None
    request_id: str | None = None
    group: str | None = None
    client: str | None = None

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.operation, self.request_id, self.group, self.client)) != 1:
            raise UserError("give one of --operation ID, --request-id ID, --group ID, --client ID")


def explain(session: Session, out: str, question: Question, top: int = 20) -> list[str]:
    """Return the story of an operation, request, group or client as lines.

    Args:
        session: Spark session or backend that reads the tables.
        out: Folder of the replay.
        question: What to explain.
        top: Maximum number of operations of a request or client, or of changes of a group.
    """
    tables = RunTables(session, out)
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
    """Return the operations of a request, by its id or the end of its id."""
    rows = tables.rows("explain/operations", request_id=request_id, top=_NO_LIMIT if request_id else 0)
    exact = [row for row in rows if row["request_id"] == request_id]
    names = list(dict.fromkeys(row["request_id"] for row in rows))
    if not exact and len(names) > 1:
        shown = ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")
        raise UserError(f"--request-id {request_id}: {len(names):,} requests end with it ({shown}); give more of it")
    return [row["operation_id"] for row in exact or rows][: top + 1]


def _place(evidence: Evidence) -> list[str]:
    """Return the whole id of a request that the story names by its line."""
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


def group_story(tables: RunTables, group: str, most: int) -> list[str]:
    """Return the story of a group: a title for each broker, its state changes, and its longest rebalance."""
    changes = tables.rows("explain/group_changes", group=group, top=most + 1, **_ALL_TIMES)
    lines: list[str] = []
    members: set[str] = set()
    broker = None
    for change in changes[:most]:
        if change["broker"] != broker:
            broker, members = change["broker"], set()
            lines.append(f"group {group} at broker {broker}")
        now = set(change["members"] or [])
        lines.append(f"  {_change(change, now - members, members - now)}")
        members = now
    if len(changes) > most:
        lines.append(f"  … and more changes; use --top to show more than {most}")
    return [*lines, *_longest(tables, group)]


def _change(change: dict[str, Any], joined: set[str], left: set[str]) -> str:
    moves = "".join(
        f"; {word} {', '.join(sorted(members))}" for word, members in (("with", joined), ("without", left)) if members
    )
    state = f"{change['to_state']}, generation {change['generation']}"
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
