"""The screen of `top`: tables from the status files of a followed replay. This module needs neither Spark nor numpy."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from purgatory_udf.backend.file_system import write_json
from purgatory_udf.common.console import Cell, Table, counted, request_label
from purgatory_udf.common.errors import UserError
from purgatory_udf.storage.output_folder import is_locked
from purgatory_udf.streaming.status_file import QueryStatus, longest_waits, read_status_files

# The rate of expirations is the mean of this number of seconds.
_RATE_SECONDS = 10
# A follower or a partition is named if a produce has waited for it this long, in milliseconds; a group, if it has
# rebalanced this long: members learn of a rebalance from their next heartbeat, by default up to 3 s later.
_LAG_MS, _REBALANCE_MS = 500, 4_000
# This many rebalances of a group within the last minute are a storm. A moved leader is shown for `_MOVE_SECONDS`.
_STORM, _STORM_SECONDS, _MOVE_SECONDS = 5, 60, 10


def show_top(out: str, once: bool, every: float, rows: int) -> None:
    """Show one frame after the other until interrupted or until the replay has finished.

    If stdout is not a terminal, a single frame is printed.

    Args:
        out: Output folder of the replay.
        once: Whether to show a single frame.
        every: Seconds between frames.
        rows: Maximum number of rows of waits and of rebalances.
    """
    console = Console()
    if once or not console.is_terminal:
        print("\n".join(_lines(out, rows, console.is_terminal)[0]))
        return
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        ended = False
        while not ended:
            lines, ended = _lines(out, rows, terminal=True)
            live.update(Text.from_ansi("\n".join(lines)), refresh=True)
            if not ended:
                time.sleep(every)


def write_status(out: str, rows: int, file: Path) -> None:
    """Write the status as JSON to a file, or print it if the file is `-`.

    `rows` is the maximum number of waits and of rebalances.
    """
    statuses, ended = read_status(out)
    write_json(file, as_json(statuses, rows, int(time.time() * 1000), ended))


def read_status(out: str) -> tuple[dict[str, QueryStatus], bool]:
    """Return the status of each query, and whether the replay has ended.

    Raises:
        UserError: No followed replay has written to `out`.
    """
    # Checked before the files are read: the last frame must show the replay's last status.
    ended = not is_locked(out, "replay")
    statuses = read_status_files(out)
    if not statuses:
        raise UserError(f"{out}: no followed replay has written there yet; start one with replay --follow")
    return statuses, ended


def _lines(out: str, rows: int, terminal: bool) -> tuple[list[str], bool]:
    """Read the status files, and return the lines of a frame and whether the replay has ended. See `render_frame`."""
    statuses, ended = read_status(out)
    return render_frame(statuses, rows, terminal, int(time.time() * 1000), ended), ended


def as_json(statuses: Mapping[str, QueryStatus], rows: int, now_ms: int, ended: bool) -> dict[str, Any]:
    """Return a frame as JSON: its tables are lists of objects with the columns' names. Arguments: `render_frame`."""
    every = list(statuses.values())
    at_ms = max(status.at_ms for status in every)
    problems = _problems(every, at_ms)
    tables = {
        "purgatories": _purgatories(every, at_ms),
        "waits": _waits(every, at_ms, rows),
        "rebalances": _rebalances(every, at_ms, rows),
    }
    return {
        "run_id": every[0].run_id,
        "time": datetime.fromtimestamp(at_ms / 1000, UTC),
        "events": sum(status.counts["events"] for status in every),
        "open": sum(status.open for status in every),
        "has_ended": ended,
        "age_ms": max(0, now_ms - max(status.written_ms for status in every)),
        "lagging_replicas": [
            {"replica": int(each.subject), "since": each.since, "waited_ms": each.lasted_ms}
            for each in problems
            if each.kind == "follower_behind"
        ],
        "problems": [asdict(each) for each in problems],
        **{name: [dict(zip(_keys(table), row, strict=True)) for row in table.rows] for name, table in tables.items()},
    }


def _keys(table: Table) -> list[str]:
    return [column.replace("/", "_per_").replace(" ", "_") for column in table.columns]


def render_frame(statuses: Mapping[str, QueryStatus], rows: int, terminal: bool, now_ms: int, ended: bool) -> list[str]:
    """Return the lines of a frame.

    Args:
        statuses: The status of each query.
        rows: Maximum number of rows of waits and of rebalances.
        terminal: Whether to use the styles of a terminal.
        now_ms: Wall-clock time.
        ended: Whether the replay has ended.
    """
    every = list(statuses.values())
    # One query may be a batch ahead. Waits are measured up to the latest, so none is negative.
    at_ms = max(status.at_ms for status in every)
    tables = [_purgatories(every, at_ms), _waits(every, at_ms, rows), _rebalances(every, at_ms, rows)]
    blocks = [
        [_head(every, at_ms, now_ms, ended), *(problem.text for problem in _problems(every, at_ms))],
        *(table.lines(terminal) for table in tables if table.rows),
    ]
    return [line for block in blocks for line in ["", *block]][1:]


def _head(statuses: list[QueryStatus], at_ms: int, now_ms: int, ended: bool) -> str:
    events = sum(status.counts["events"] for status in statuses)
    still_open = sum(status.open for status in statuses)
    moment = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    age = max(0, now_ms - max(status.written_ms for status in statuses)) // 1000
    freshness = "the replay has stopped" if ended else f"updated {age:,} s ago"
    at = moment.removesuffix("+00:00")
    return f"Run {statuses[0].run_id}: {at} · {events:,} events · {still_open:,} operations open · {freshness}"


@dataclass(frozen=True)
class Problem:
    """Something that is wrong now.

    Attributes:
        kind: `follower_behind`, `below_min_isr`, `leader_moved`, `rebalancing`, `rebalance_storm` or
            `sessions_expired`.
        subject: The broker, partition or group; of expired sessions, the coordinator.
        since: Start, or None for expired sessions.
        lasted_ms: Time since then, in milliseconds.
        text: A sentence.
    """

    kind: str
    subject: str
    since: datetime | None
    lasted_ms: int | None
    text: str


def _problems(statuses: list[QueryStatus], at_ms: int) -> list[Problem]:
    """Return what is wrong now: what the oldest produces wait for, moved leaders, rebalances, and expired sessions."""
    return [
        *_waits_for(statuses, at_ms, "follower_behind", "replicas", "Broker {} is behind: produces have waited for it"),
        *_waits_for(
            statuses, at_ms, "below_min_isr", "below_min_isr", "{} is below min.insync.replicas: produces have waited"
        ),
        *_moved_leaders(statuses, at_ms),
        *_long_rebalances(statuses, at_ms),
        *_storms(statuses, at_ms),
        *_expired_sessions(statuses, at_ms),
    ]


def _waits_for(statuses: list[QueryStatus], at_ms: int, kind: str, field: str, text: str) -> Iterator[Problem]:
    """Yield what the oldest produces wait for by a field of theirs, a list; the longest wait first."""
    since_us: dict[Any, int] = {}
    for operation in longest_waits(statuses):
        for subject in operation.get(field, ()):
            since_us[subject] = min(operation["since_us"], since_us.get(subject, operation["since_us"]))
    for subject, start_us in sorted(since_us.items(), key=lambda item: (item[1], item[0])):
        yield from _lasting(kind, str(subject), start_us, at_ms, _LAG_MS, text.format(subject))


def _moved_leaders(statuses: list[QueryStatus], at_ms: int) -> Iterator[Problem]:
    """Yield the brokers at which waiting requests ended in the last seconds because the broker lost its leadership."""
    counts: dict[int, Counter[int]] = {}
    for at, broker, count in (row for status in statuses for row in status.moved):
        if at >= at_ms // 1000 - _MOVE_SECONDS:
            counts.setdefault(broker, Counter())[at] += count
    for broker, by_second in sorted(counts.items()):
        requests = counted(sum(by_second.values()), "waiting request")
        text = f"Leaders moved away from broker {broker}: {requests} ended there"
        yield from _lasting("leader_moved", str(broker), min(by_second) * 1_000_000, at_ms, 0, text)


def _storms(statuses: list[QueryStatus], at_ms: int) -> Iterator[Problem]:
    """Yield the groups that have rebalanced often within the last minute."""
    started: dict[str, Counter[int]] = {}
    for at, _, group, count in (row for status in statuses for row in status.rebalanced):
        if at >= at_ms // 1000 - _STORM_SECONDS:
            started.setdefault(group, Counter())[at] += count
    for group, by_second in sorted(started.items()):
        if (times := sum(by_second.values())) >= _STORM:
            text = f"Group {group} has rebalanced {times} times"
            yield from _lasting("rebalance_storm", group, min(by_second) * 1_000_000, at_ms, 0, text)


def _long_rebalances(statuses: list[QueryStatus], at_ms: int) -> Iterator[Problem]:
    rebalances = [each for status in statuses for each in status.rebalances.values() if each["since_us"] is not None]
    for rebalance in sorted(rebalances, key=lambda each: (each["since_us"], each["group"])):
        named = _named(rebalance["named"], rebalance["missing"])
        text = f"Group {rebalance['group']} waits for {named}: the group has rebalanced"
        yield from _lasting("rebalancing", rebalance["group"], rebalance["since_us"], at_ms, _REBALANCE_MS, text)


def _lasting(kind: str, subject: str, start_us: int, at_ms: int, least_ms: int, text: str) -> Iterator[Problem]:
    lasted_ms = at_ms - start_us // 1000
    if lasted_ms >= least_ms:
        since = datetime.fromtimestamp(start_us / 1_000_000, UTC)
        clock = f"{since:%H:%M:%S.%f}"[:-3]
        yield Problem(kind, subject, since, lasted_ms, f"{text} since {clock}, {lasted_ms:,} ms")


def _expired_sessions(statuses: list[QueryStatus], at_ms: int) -> Iterator[Problem]:
    counts: Counter[int] = Counter()
    for (broker, purgatory), count in _recently_expired(statuses, at_ms).items():
        if purgatory == "Heartbeat":
            counts[broker] += count
    for broker, count in sorted(counts.items()):
        sessions = f"{counted(count, 'session')} of group members"
        text = f"{sessions} expired at broker {broker} in the last {_RATE_SECONDS} s"
        yield Problem("sessions_expired", str(broker), None, None, text)


def _recently_expired(statuses: list[QueryStatus], at_ms: int) -> Counter[tuple[int, str]]:
    """Return the number of expirations in the last `_RATE_SECONDS`, by broker and purgatory."""
    until = at_ms // 1000
    expired: Counter[tuple[int, str]] = Counter()
    for status in statuses:
        for at, broker, purgatory, count in status.expired:
            if until - _RATE_SECONDS <= at < until:
                expired[broker, purgatory] += count
    return expired


def _purgatories(statuses: list[QueryStatus], at_ms: int) -> Table:
    expired = _recently_expired(statuses, at_ms)
    gauges: dict[tuple[int, str], list[int]] = {}
    for status in statuses:
        for group in status.groups.values():
            for broker, purgatory, watched, delayed in group["purgatories"]:
                sums = gauges.setdefault((broker, purgatory), [0, 0])
                sums[0] += watched
                sums[1] += delayed
    first: dict[tuple[int, str], dict[str, Any]] = {}
    for operation in longest_waits(statuses):
        first.setdefault((operation["broker"], operation["purgatory"]), operation)
    rows: list[list[Cell]] = []
    for owner, (watched, delayed) in sorted(gauges.items()):
        longest = first.get(owner)
        waited = None if longest is None else max(0, at_ms - longest["since_us"] // 1000)
        rows.append([*owner, watched, delayed, expired[owner] / _RATE_SECONDS, waited])
    return Table("Purgatories", ("broker", "purgatory", "watched", "delayed", "expired/s", "longest wait ms"), rows)


def _waits(statuses: list[QueryStatus], at_ms: int, limit: int) -> Table:
    rows = [
        (
            request_label(operation["request_id"] or f"operation {operation['operation_id']}"),
            operation["kind"],
            operation["broker"],
            operation["client_id"],
            max(0, at_ms - operation["since_us"] // 1000),
            operation["deadline_ms"] - at_ms,
            operation["lacks"],
        )
        for operation in longest_waits(statuses)[:limit]
    ]
    columns = ("request", "kind", "broker", "client", "waiting ms", "ms left", "lacks")
    return Table("Waiting longest", columns, rows)


def _rebalances(statuses: list[QueryStatus], at_ms: int, limit: int) -> Table:
    rebalances = [rebalance for status in statuses for rebalance in status.rebalances.values()]
    rebalances.sort(key=lambda row: (row["since_us"] is None, row["since_us"], row["broker"], row["group"]))
    rows = [
        (
            rebalance["group"],
            rebalance["broker"],
            rebalance["state"],
            None if rebalance["since_us"] is None else max(0, at_ms - rebalance["since_us"] // 1000),
            None if rebalance["deadline_ms"] is None else rebalance["deadline_ms"] - at_ms,
            f"{rebalance['missing']:,} of {rebalance['members']:,}",
            _named(rebalance["named"], rebalance["missing"]),
        )
        for rebalance in rebalances[:limit]
    ]
    more = f" ({len(rebalances):,} in all)" if len(rebalances) > limit else ""
    columns = ("group", "broker", "state", "since ms", "ms left", "missing", "members")
    return Table(f"Groups in rebalance{more}", columns, rows)


def _named(names: Iterable[str], total: int) -> str:
    named = list(names)
    return ", ".join(named) + (f", {total - len(named):,} more" if total > len(named) else "") if named else "-"
