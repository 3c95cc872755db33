"""The questions of `explain`: the story of an operation, of a request, or of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from purgatory_udf.answers.evidence import Evidence, collect
from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.answers.story import moment, story
from purgatory_udf.common.errors import UserError

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Session

_ALL_TIMES = {"from_us": -(1 << 62), "until_us": 1 << 62}
_NO_LIMIT = (1 << 31) - 1
_OF_GROUPS, _OF_MEMBERS = ("join", "initial_join", "sync"), ("heartbeat", "session", "reconciliation")


@dataclass(frozen=True)
class Question:
    """An operation, a request or a group; exactly one of the fields is set."""

    operation: int | None = None
    request_id: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.operation, self.request_id, self.group)) != 1:
            raise UserError("give one of --operation ID, --request-id ID, --group ID")


def explain(session: Session, out: str, question: Question, top: int = 20) -> list[str]:
    """Return the story as lines, for at most `top` operations of a request or changes of a group."""
    tables = RunTables(session, out)
    if question.group is not None:
        lines = group_story(tables, question.group, top)
        if not lines:
            raise UserError(f"{out}: no state changes of group {question.group} found")
        return lines
    if question.operation is not None:
        what, ids = f"operation {question.operation}", [question.operation]
    else:
        what = f"request {question.request_id}"
        rows = tables.rows("explain/operations", request_id=question.request_id, top=top)
        ids = [row["operation_id"] for row in rows]
    collected = collect(tables, ids)
    if not collected:
        raise UserError(f"{out}: no {what} found")
    for evidence in collected:
        _add_group_changes(tables, evidence)
    stories = [story(evidence) for evidence in collected]
    return [line for lines in stories for line in ["", *lines]][1:]


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
    return f"{moment(change['at_us'])}  {state}: {change['reason']}{moves} ({len(change['members'] or [])} members)"


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
