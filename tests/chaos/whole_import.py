"""A hostile file goes the whole way without Spark: it is taken in, replayed, and asked about, by the commands
themselves."""

from __future__ import annotations

import io
import json
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from deltalake import DeltaTable

from jobs import audit, fidelity, ingest, metrics, replay, report
from purgatory_udf.backend.dialect import locally
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.launch.job import DONE, USER_ERROR, Job

# What is Spark's to decide; whatever else would be left to it is a failure here.
_LEFT = "events that are late, or whose numbers may repeat"
# Lines are put together by chance: in no order of time.
_ANY_ORDER = ("--max-disorder-ms", "86400000")


def whole_way(path: Path) -> tuple[int, int, int]:
    """How many lines were read, accepted and rejected; the laws of the tables hold, and nobody is told of a stack."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        log = ".log" in path.name
        form = ("request-log",) if log else ("jsonl", *_ANY_ORDER)
        try:
            if _given(ingest.main, "--from", *form, str(path), "--max-rejected", "100", out=out) == USER_ERROR:
                return 0, 0, 0
        except NeedsSparkError as left:
            assert str(left) == _LEFT, left
            return 0, 0, 0
        counts = _counts(out)
        events, rejected = counts["events"], counts["rejected"]
        lines = counts.get("lines", events + rejected)
        assert log or events + rejected == lines, counts
        if _given(replay.main, "--events", f"{out}/events", out=out) == USER_ERROR:
            assert events == 0, "the replay was refused"
            return lines, events, rejected
        for asked in (audit.main, metrics.main, report.main, *((fidelity.main,) if log else ())):
            assert _given(asked, out=out) == DONE, asked.name
        return lines, events, rejected


def _given(job: Job, *words: str, out: Path) -> int:
    """The status: nothing failed, and no law is broken."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), locally():
        status = job.status([*words, "--out", str(out)])
    assert status in (DONE, USER_ERROR), f"{job.name} ended with {status}: {said.getvalue()[-300:]}"
    assert "Traceback" not in said.getvalue(), said.getvalue()[-300:]
    return status


def _counts(out: Path) -> dict[str, int]:
    (recorded,) = DeltaTable(str(out / "runs")).to_pyarrow_table().column("counts").to_pylist()
    counts: dict[str, int] = json.loads(recorded)
    return counts
