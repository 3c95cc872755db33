"""Replay the bundled sample trace, from JSON Lines to a chart."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory_udf.backend.file_system import LocalFiles, require_no_file
from purgatory_udf.common.errors import UserError
from purgatory_udf.common.installation import conf_folder
from purgatory_udf.launch import job, jvm
from purgatory_udf.launch.backend_choice import OpenBackend, open_local

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Backend

STORY = """\
Six seconds of the brokers of a shop: two checkout services produce orders (acks=all) at broker 1, brokers 2 and 3
replicate them, and billing, fraud-check and warehouse consume them. From 2.2 s to 4.4 s broker 3 is stalled; at 5.2 s
one partition moves to broker 2. Which requests waited, what completed them, and after how long?
"""
# Something that is new in Kafka 4; requests of the sample trace end in Kafka 3 and 4 as shown.
NEXT = "For a trace of Kafka 4's tiered storage: simulate --scenario cold-consumers --out cold --check"


# The entries of a demo's folder, which the next demo deletes.
DEMO_ENTRIES = {
    *("events", "rejected_events", "watches", "completions", "expirations", "cancellations", "runs", "waits.svg"),
    *("share_deliveries", "group_transitions", "member_transitions", "group_disagreements", "purgatory_gauges"),
    *("_replay", "_ingest"),
    *("blame", "findings", "metrics", "_report", "report.html", "what_if", "_what_if", "what-if.html"),
}

# Maximum number of findings that the demo prints.
MOST_FINDINGS = 3

# Modules of the replay and of its answers.
_LATER_MODULES = (
    "purgatory_udf.streaming.replay_run",
    "purgatory_udf.answers.replay_summary",
    "purgatory_udf.answers.audit",
    "purgatory_udf.answers.diagnosis.diagnosis_run",
)
# The module of the chart, which is drawn last.
_CHART_MODULE = "altair"
# Number of databases that the demo uses at the same time.
_DATABASES = 4
# How often to check whether the JVM is up, and whether the replay has started.
_POLL_SECONDS = 0.02


def _checks(out: Path) -> None:
    require_no_file(LocalFiles(), str(out))
    unknown = [entry.name for entry in out.iterdir() if entry.name not in DEMO_ENTRIES] if out.is_dir() else []
    if unknown:
        raise UserError(f"{out}: contains {unknown[0]}, which is not from a demo; choose another --out")


def _import_trace(place: str) -> tuple[str, str]:
    """Import the sample trace below `place` without Spark; return the path of the events, and the import's name."""
    from purgatory_udf.common.configuration import Config
    from purgatory_udf.sources.trace_files.trace_import import ingest_trace

    trace = conf_folder() / "sample" / "trace.jsonl"
    return ingest_trace(open_local(), [str(trace)], place, Config(), overwrite=False)


def _open_databases(is_open: Event) -> None:
    """Open the databases of the later steps while Spark starts in the JVM. Before, the JVM's start takes both cores."""
    from purgatory_udf.backend.sql_database import open_databases

    while not jvm.is_ready() and not is_open.wait(_POLL_SECONDS):
        pass
    open_databases(_DATABASES)


def _load_renderer(backend: Backend, replayed: Event) -> None:
    """Load the chart's renderer, which blocks all other threads of this process, while Spark plans the first batch.

    Spark calls this process when the batch is planned.
    """
    from purgatory_udf.answers.replay_summary import load_renderer
    from purgatory_udf.backend.backend import SparkBackend

    while not replayed.wait(_POLL_SECONDS):
        if isinstance(backend, SparkBackend) and backend.spark.streams.active:
            load_renderer()
            return


def _end_spark(backend: Backend) -> None:
    """Shut down the JVM that this process has started; if it has started none, stop the session, which takes longer."""
    if not jvm.shut_down():
        backend.stop()


@job.job(checks=_checks, brief=True, spark_is_optional=True)
def main(
    open_backend: OpenBackend,
    out: Annotated[Path, typer.Option(help="Folder of the tables and the chart; replaces an earlier demo.")] = Path(
        "demo"
    ),
) -> None:
    """Replay the bundled sample trace, check its tables, and print a summary (the default job)."""
    # Import what both threads need first: parallel imports of modules that import each other can fail. The workers'
    # process inherits these modules, but must not inherit threads.
    import_module("pandas")
    with suppress(ModuleNotFoundError):
        import_module("pyspark.sql")
    for name in _LATER_MODULES:
        import_module(name)
    jvm.preload_workers()
    _checks(out)
    shutil.rmtree(out, ignore_errors=True)
    print(STORY)
    # Name the local file system, because a cluster has another default.
    place = f"file://{out.absolute()}"
    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as stopping, ThreadPoolExecutor(1) as answering:
        # Import the trace and load modules while Spark starts, if it is installed.
        importing = executor.submit(_import_trace, place)
        is_open = Event()
        loading = executor.submit(_open_databases, is_open)
        executor.submit(import_module, _CHART_MODULE)
        try:
            chosen = open_backend()
        finally:
            is_open.set()
        events, ingested = importing.result()
        loading.result()

        from purgatory_udf.answers.audit import audit, report, require_all
        from purgatory_udf.answers.diagnosis.diagnosis_run import diagnose, sentences
        from purgatory_udf.answers.replay_summary import save_waits, summary
        from purgatory_udf.common.configuration import Config
        from purgatory_udf.streaming.replay_run import run_replay
        from purgatory_udf.streaming.run_resumption import ReplayOptions

        replayed = Event()
        rendering = executor.submit(_load_renderer, chosen, replayed)
        try:
            run = run_replay(chosen, ReplayOptions(events, place, Config(), ingested=ingested))
        finally:
            replayed.set()
        # The tables are small: this process queries them, while Spark stops.
        stopping.submit(_end_spark, chosen)
        backend = open_local()
        diagnosing = answering.submit(diagnose, open_local(), place)
        drawing = executor.submit(save_waits, open_local(), place, out.absolute() / "waits.svg")
        print("\n".join(summary(backend, place, run)))
        findings = audit(backend, place)
        print("\n".join(["", *report(findings)]))
        require_all(findings)

        print("\n".join(["", "Diagnosis", *sentences(diagnosing.result(), str(out), MOST_FINDINGS)]))

        rendering.result()
        print(f"\nChart: {drawing.result()}")
        print(NEXT)


if __name__ == "__main__":
    main()
