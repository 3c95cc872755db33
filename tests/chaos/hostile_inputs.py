"""Random hostile input: each line of a trace or a request log must become an event or a rejection, without a failure.

    python -m tests.chaos.hostile_inputs --minutes 10 --seed 7   # prints the number of inputs, and failing seeds

Each input is a file of valid lines with random changes. It is read by the functions that Spark's tasks run, or with
`--jobs` imported, replayed and reported by the jobs themselves, without Spark. A failure is printed with its seed; the
same seed gives the same input.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from purgatory_udf.contract import as_text, read_line
from purgatory_udf.sources.request_log.cluster_context import GivenMetadata, build_context
from purgatory_udf.sources.request_log.cluster_facts import CLUSTER_APIS
from purgatory_udf.sources.request_log.importing import import_rows, import_tasks, log_reader
from purgatory_udf.sources.request_log.importing.import_passes import UNORDERED
from purgatory_udf.sources.trace_files.input_files import InputFile
from purgatory_udf.sources.trace_files.piece_validation import unpack, validate_piece
from purgatory_udf.sources.trace_files.text_lines import PIECE_BYTES, FileLimits, Piece, byte_pieces, lines_of
from tests.chaos.whole_import import run_all_jobs

Json = Any
SKIPPED_CAUSES = ("other_lines", "controller", "no_purgatory", "topic_admin", "modern_group")
LIMITS = FileLimits(line_bytes=200_000)
ROOT = Path(__file__).resolve().parents[2]

NUMBERS: list[Json] = [0, 1, -1, 2**31 - 1, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30, 1.5, -0.0, 1e300]
VALUES: list[Json] = [*NUMBERS, None, True, "", "x", "é", "\0", "NaN", [], {}, [[]], [None], {"a": {}}, "a" * 1000]
TEXTS = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"01", b'"\\ud800"', b"9" * 5000, b'"\xff"', b"'x'", b"tru", b""]


class LineCounts(NamedTuple):
    """Number of lines of an input, and how many were accepted, rejected or skipped."""

    lines: int
    accepted: int
    rejected: int
    skipped: int


def validate_trace(path: Path) -> LineCounts:
    """Validate a file of JSON Lines; blank lines are skipped."""
    totals = [0, 0, 0, 0]
    for piece in _pieces(path):
        batches = list(validate_piece(piece, lines_of(piece), read_line, as_text, bytes))
        rows_read = [row for batch in batches for row in batch.to_pylist()]
        end = rows_read[-1]
        accepted = sum(unpack(row["packed"]).num_rows for row in rows_read if row["packed"])
        rejected = [row for row in rows_read if row["rule"]]
        assert all(row["reason"] and row["raw"] is not None for row in rejected)
        assert (end["rows"], end["events"]) == (accepted + len(rejected), accepted)
        counts = (end["line"], accepted, len(rejected), end["line"] - end["rows"])
        totals = [before + more for before, more in zip(totals, counts, strict=True)]
    return _checked_counts(LineCounts(*totals))


def import_log(path: Path) -> LineCounts:
    """Convert a request log into events; lines of other loggers and requests that never wait are skipped."""
    read = [batch for piece in _pieces(path) for batch in log_reader.read_piece(piece, UTC)]
    rows = [row for batch in read for row in batch.to_pylist()]
    tally = log_reader.Tally.of((row["counts"], row["body"]) for row in rows if row["row"] == log_reader.END)
    requests = sorted(
        (row for row in rows if row["row"] == log_reader.REQUEST),
        key=lambda row: (row["broker"], row["session"] or "", row["start_us"], row["file"], row["line"]),
    )
    cluster_rows = sorted((row for row in requests if row["api"] in CLUSTER_APIS), key=lambda row: row["start_us"])
    span = tally.span_us or (0, 0)
    cluster_requests = (
        import_rows.request_of(import_rows.RequestRow(*(row[name] for name in import_rows.RequestRow._fields)))
        for row in cluster_rows
    )
    context = build_context(
        cluster_requests, GivenMetadata(), span, [], tally.partitions, True, remote_waits=tally.remote_waits
    )
    others = _batch([row for row in requests if row["session"] is None], import_rows.REQUESTS)
    fetches = _batch([row for row in requests if row["session"] is not None], import_rows.REQUESTS)
    converted = [
        *import_tasks.request_step(lambda: context)(others),
        *import_tasks.session_step(lambda: context)(fetches),
    ]
    parts = [row for batch in converted for row in batch.to_pylist()]
    facts = sorted((row for row in parts if row["part"] == import_rows.FACT), key=_partition)
    changes = [
        row
        for batch in import_tasks.timeline_step(lambda: context)(_batch(facts, import_rows.PARTS))
        for row in batch.to_pylist()
    ]
    finished = [
        row
        for batch in import_tasks.finish_events(None, "x{}".format)(_events(parts, changes))
        for row in batch.to_pylist()
    ]
    bad = [row["reason"] for row in rows if row["row"] == log_reader.BAD]
    bad += [row["kind"] for row in parts if row["part"] == import_rows.BAD]
    assert all(bad) and all(row["reason"] and row["raw"] for row in finished if row["rule"])
    unread = sum(row["row"] == log_reader.BAD for row in rows)
    passed = sum(tally.counts[cause] for cause in SKIPPED_CAUSES)
    return _checked_counts(LineCounts(tally.counts["lines"], len(requests), unread, passed))


def _checked_counts(counts: LineCounts) -> LineCounts:
    """Check that each line is accepted, rejected or skipped."""
    assert counts.accepted + counts.rejected + counts.skipped == counts.lines, counts
    return counts


def _pieces(path: Path) -> Iterator[Piece]:
    file = InputFile(fs.LocalFileSystem(), str(path), str(path), path.stat().st_size)
    return byte_pieces([file], PIECE_BYTES, LIMITS)


def _batch(contents: list[dict[str, Json]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pylist(contents, schema=schema)])


def _partition(row: dict[str, Json]) -> tuple[Json, ...]:
    return row["broker"], row["topic"], row["partition"]


def _events(parts: list[dict[str, Json]], changes: list[dict[str, Json]]) -> Iterator[pa.RecordBatch]:
    offsets: dict[tuple[int, int], dict[str, list[Json]]] = {}
    for row in changes:
        if row["part"] == import_rows.PRODUCED:
            of_line = offsets.setdefault((row["file"], row["line"]), {"slots": [], "bases": [], "ends": []})
            for name in ("slot", "base", "end"):
                of_line[f"{name}s"].append(row[name])
    operations = [row for row in parts if row["part"] == import_rows.OPERATION]
    operations = [{**row, **offsets.get((row["file"], row["line"]), {})} for row in operations]
    rows = [row for row in changes if row["part"] == import_rows.CHANGE]
    return _batch([*operations, *rows], UNORDERED)


def random_trace(rng: Random) -> bytes:
    """Return a file of events, some of them changed."""
    whole = (ROOT / "conf/sample/trace.jsonl").read_bytes().splitlines()
    lines = [_mutated(rng.choice(whole), rng) for _ in range(rng.randrange(1, 60))]
    return _join_lines(lines, rng)


def random_log(rng: Random) -> bytes:
    """Return a request log with some changed lines."""
    return _join_lines([random_log_line(rng) for _ in range(rng.randrange(1, 60))], rng)


T = "w1aw1aw1aw1aw1aw1aw1aw"
_FETCHED = {"partition": 0, "currentLeaderEpoch": 1, "fetchOffset": 7, "logStartOffset": -1, "partitionMaxBytes": 1000}
_READ = {"partitionIndex": 0, "errorCode": 0, "highWatermark": 7, "recordsSizeInBytes": 100}
_MEMBER = {"groupId": "g", "memberId": "m", "generationId": 1}
BODIES: dict[str, tuple[dict[str, Json], dict[str, Json] | None]] = {
    "PRODUCE": (
        {
            "acks": -1,
            "timeoutMs": 500,
            "transactionalId": None,
            "topicData": [{"topicId": T, "partitionData": [{"index": 0, "recordsSizeInBytes": 90}]}],
        },
        {"responses": [{"topicId": T, "partitionResponses": [{"index": 0, "errorCode": 0, "baseOffset": 7}]}]},
    ),
    "FETCH": (
        {
            "replicaState": {"replicaId": 2},
            "maxWaitMs": 500,
            "minBytes": 1,
            "maxBytes": 10_000,
            "isolationLevel": 0,
            "sessionId": 0,
            "sessionEpoch": 0,
            "topics": [{"topicId": T, "partitions": [_FETCHED]}],
            "forgottenTopicsData": [],
            "rackId": "a",
        },
        {"errorCode": 0, "sessionId": 9, "responses": [{"topicId": T, "partitions": [_READ]}]},
    ),
    "METADATA": (
        {"topics": None},
        {
            "topics": [
                {
                    "errorCode": 0,
                    "name": "t",
                    "topicId": T,
                    "partitions": [
                        {"errorCode": 0, "partitionIndex": 0, "leaderId": 1, "leaderEpoch": 1, "replicaNodes": [1, 2]}
                        | {"isrNodes": [1, 2]}
                    ],
                }
            ]
        },
    ),
    "JOIN_GROUP": (
        {"groupId": "g", "memberId": "", "sessionTimeoutMs": 9, "rebalanceTimeoutMs": 9, "protocols": [{"name": "r"}]},
        {"errorCode": 0, "memberId": "m", "leader": "m", "generationId": 1},
    ),
    "SYNC_GROUP": ({**_MEMBER, "assignments": [{}]}, {"errorCode": 0}),
    "HEARTBEAT": (_MEMBER, {"errorCode": 0}),
    "LEAVE_GROUP": ({"groupId": "g", "members": [{"memberId": "m"}]}, {"members": [{"errorCode": 0}]}),
    "OFFSET_COMMIT": (
        {**_MEMBER, "topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "committedOffset": 3}]}]},
        {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "errorCode": 0}]}]},
    ),
    "DELETE_RECORDS": (
        {"timeoutMs": 5, "topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "offset": 3}]}]},
        {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "errorCode": 0}]}]},
    ),
    "INIT_PRODUCER_ID": ({"transactionalId": "x"}, {"producerId": 5, "errorCode": 0}),
    "ADD_PARTITIONS_TO_TXN": (
        {
            "v3AndBelowTransactionalId": "x",
            "v3AndBelowProducerId": 5,
            "v3AndBelowTopics": [{"name": "t", "partitions": [0]}],
        },
        {"resultsByTopicV3AndBelow": [{"name": "t", "resultsByPartition": [{"partitionIndex": 0}]}]},
    ),
    "WRITE_TXN_MARKERS": (
        {"markers": [{"producerId": 5, "topics": [{"name": "t", "partitionIndexes": [0]}]}]},
        {"markers": []},
    ),
    "ALTER_PARTITION": (
        {},
        {
            "errorCode": 0,
            "topics": [
                {"topicId": T, "partitions": [{"partitionIndex": 0, "leaderId": 1, "leaderEpoch": 2, "isr": [1]}]}
            ],
        },
    ),
    "CREATE_TOPICS": (
        {"topics": [{"name": "t", "configs": [{"name": "remote.storage.enable", "value": "true"}]}]},
        {"topics": [{"name": "t", "topicId": T, "errorCode": 0, "configs": []}]},
    ),
    "LIST_OFFSETS": (
        {"replicaId": -1, "topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "timestamp": 7}]}]},
        {"topics": [{"name": "t", "partitions": [{"partitionIndex": 0, "errorCode": 0, "offset": 3}]}]},
    ),
    "DELETE_TOPICS": ({}, {"responses": [{"name": "t", "topicId": T, "errorCode": 0}]}),
}


def random_log_line(rng: Random) -> bytes:
    api = rng.choice(list(BODIES))
    request, response = copy.deepcopy(BODIES[api])
    body = {
        "isForwarded": False,
        "requestHeader": {"requestApiKey": 1, "requestApiVersion": 13, "clientId": "c", "requestApiKeyName": api},
        "request": request,
        "response": response,
        "connection": "c-1",
        "totalTimeMs": 3.5,
        "requestQueueTimeMs": 0.5,
        "localTimeMs": 1.0,
        "remoteTimeMs": rng.choice([0.0, 2.0]),
        "responseQueueTimeMs": 0.0,
        "sendTimeMs": 0.0,
        "listener": "P",
    }
    text = _mutated(json.dumps(body).encode(), rng)
    year = rng.choice([2026] * 20 + [1, 1969, 2300, 9999])
    stamp = f"{year:04}-11-21 02:54:{rng.randrange(60):02},{rng.randrange(1000):03}"
    thread = rng.choice(["[x-network-thread-1-P] "] * 20 + ["", f"[x-network-thread-{10**12}-P] "])
    return f"[{stamp}] DEBUG {thread}Completed request:".encode() + text + b" (kafka.request.logger)"


def _mutated(line: bytes, rng: Random) -> bytes:
    """Return the line unchanged, or with changed values, keys or bytes; it may no longer be valid JSON."""
    kind = rng.randrange(8)
    if kind <= 2:
        return line
    if kind <= 5:
        value = json.loads(line)
        for _ in range(rng.randrange(1, 3)):
            _mutate(value, rng)
        return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", errors="surrogatepass")
    if kind == 6:
        place = rng.randrange(len(line))
        return line[:place] + rng.choice(TEXTS) + line[place + rng.randrange(3) :]
    depth = rng.choice([90, 300, 999, 10_000])
    broken = [
        line[: rng.randrange(len(line))],
        bytes(rng.randrange(256) for _ in range(rng.randrange(80))),
        line[:-1] + b',"x":' + b"[" * depth + b"]" * depth + b"}",
        line[:-1] + b',"x":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}",
        line[:-1] + b',"x":"' + b"y" * rng.choice([10, 300_000]) + b'"}',
        line[:-1] + b"," + line[1:],
        b"\xef\xbb\xbf" + line,
        line.decode(errors="replace").encode("utf-16"),
    ]
    return rng.choice(broken)


def _mutate(value: Json, rng: Random) -> None:
    """Change a random value in a JSON value, or remove or repeat a key or an item."""
    inner = list(value.values()) if isinstance(value, dict) else value
    deeper = [child for child in inner if isinstance(child, dict | list) and child]
    if deeper and rng.random() < 0.7:
        _mutate(rng.choice(deeper), rng)
        return
    place = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    kind = rng.randrange(4)
    if kind == 0:
        del value[place]
    elif kind == 1 and isinstance(value, list):
        value.append(copy.deepcopy(value[place]))
    else:
        value[place] = copy.deepcopy(rng.choice(VALUES))


def _join_lines(lines: list[bytes], rng: Random) -> bytes:
    return rng.choice([b"\n", b"\r\n"]).join(line.replace(b"\n", b" ") for line in lines)


FORMS: dict[str, tuple[Callable[[Random], bytes], Callable[[Path], LineCounts]]] = {
    "trace.jsonl": (random_trace, validate_trace),
    "request-1.log": (random_log, import_log),
}


def try_input(seed: str, folder: Path, whole: bool = False) -> LineCounts:
    """Read the input of a seed; with `whole`, run all jobs on it."""
    rng = Random(seed)
    name = rng.choice(list(FORMS))
    make, read = FORMS[name]
    content = make(rng)
    compressed = rng.random() < 0.2
    path = folder / (f"{name}.gz" if compressed else name)
    if compressed:
        content = gzip.compress(content)
        content = content[: rng.choice([len(content), rng.randrange(1, len(content) + 1)])]
    path.write_bytes(content)
    return LineCounts(*run_all_jobs(path), 0) if whole else read(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", default="1", help="seed, or SEED/NUMBER for a single input")
    parser.add_argument("--jobs", action="store_true", help="run the jobs themselves, without Spark")
    options = parser.parse_args()
    seed, _, only = options.seed.partition("/")
    deadline = time.monotonic() + options.minutes * 60
    total, failed = LineCounts(0, 0, 0, 0), []
    tried = 0
    with tempfile.TemporaryDirectory() as folder:
        number = int(only) if only else 0
        while True:
            try:
                outcome = try_input(f"{seed}/{number}", Path(folder), options.jobs)
                total = LineCounts(*(before + more for before, more in zip(total, outcome, strict=True)))
            except Exception as error:
                failed.append(f"{seed}/{number}")
                print(f"--seed {seed}/{number}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
                if only:
                    raise
            tried, number = tried + 1, number + 1
            if only or time.monotonic() >= deadline:
                break
    print(
        f"{tried:,} inputs, {total.lines:,} lines: {total.accepted:,} accepted, {total.rejected:,} rejected, ", end=""
    )
    print(f"{total.skipped:,} skipped; {len(failed)} inputs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
