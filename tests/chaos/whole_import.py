"""Runs all jobs on a hostile file without Spark: import, replay, audit, metrics and reports."""

from __future__ import annotations

import io
import json
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from deltalake import DeltaTable

from jobs import audit, fidelity, ingest, metrics, replay, report
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.launch.job import DONE, USER_ERROR, Job

# The only reason for which the import may need Spark.
_NEEDS_SPARK = "a moment has too many events for this process"
# Random lines are not in time order.
_ANY_ORDER = ("--max-disorder-ms", "86400000")


def run_all_jobs(path: Path) -> tuple[int, int, int]:
    """Run all jobs; return the number of lines that were read, accepted and rejected. No job may fail."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        log = ".log" in path.name
        form = ("request-log",) if log else ("jsonl", *_ANY_ORDER)
        try:
            if _run_job(ingest.main, "--from", *form, str(path), "--max-rejected", "100", out=out) == USER_ERROR:
                return 0, 0, 0
        except NeedsSparkError as reason:
            assert str(reason) == _NEEDS_SPARK, reason
            return 0, 0, 0
        counts = _counts(out)
        events, rejected = counts["events"], counts["rejected"]
        lines = counts.get("lines", events + rejected)
        assert log or events + rejected == lines, counts
        if _run_job(replay.main, "--events", f"{out}/events", out=out) == USER_ERROR:
            assert events == 0, "the replay was refused"
            return lines, events, rejected
        for job in (audit.main, metrics.main, report.main, *((fidelity.main,) if log else ())):
            assert _run_job(job, out=out) == DONE, job.name
        return lines, events, rejected


def _run_job(job: Job, *words: str, out: Path) -> int:
    """Run a job and return its exit status, which must be success or a user error, without a stack trace."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        status = job.status([*words, "--out", str(out)], open_local)
    assert status in (DONE, USER_ERROR), f"{job.name}: exit status {status}: {output.getvalue()[-300:]}"
    assert "Traceback" not in output.getvalue(), output.getvalue()[-300:]
    return status


def _counts(out: Path) -> dict[str, int]:
    (recorded,) = DeltaTable(str(out / "runs")).to_pyarrow_table().column("counts").to_pylist()
    counts: dict[str, int] = json.loads(recorded)
    return counts
