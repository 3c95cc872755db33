"""Compute operator metrics from a replay's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purgatory_udf.answers.metrics import BYTES_PER_WATCH, DIMENSIONS, MetricsOptions
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import ANY_BYTES, OpenBackend
from purgatory_udf.storage.output_folder import require_folder


def _options(window_ms: int, by: list[str] | None, bytes_per_watch: int, top: int) -> MetricsOptions:
    chosen = [name.strip() for names in by or [] for name in names.split(",") if name.strip()]
    return MetricsOptions(
        window_ms, tuple(dict.fromkeys(chosen)) or MetricsOptions.by, bytes_per_watch=bytes_per_watch, top=top
    )


def _checks(
    out: str,
    window_ms: int,
    by: list[str] | None,
    bytes_per_watch: int,
    top: int,
    prometheus: Path | None,
    json: Path | None,
) -> None:
    _options(window_ms, by, bytes_per_watch, top)
    job.require_file("--prometheus", prometheus)
    job.require_file("--json", json)
    require_folder(out)


@job.job(checks=_checks, reads=("out",), max_local_bytes=ANY_BYTES)
def main(
    open_backend: OpenBackend,
    out: Annotated[str, typer.Option(help="Folder of a replay's tables; the replay may still be running.")],
    window_ms: Annotated[
        int,
        typer.Option(
            min=1, max=1_000_000_000, help="Length of the time windows of meters and counts, in milliseconds."
        ),
    ] = 1000,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help=f"Dimension to group waits by: {', '.join(DIMENSIONS)} (repeatable).  [default: topic, client, group]",
            show_default=False,
        ),
    ] = None,
    bytes_per_watch: Annotated[
        int,
        typer.Option(
            min=0, max=1_000_000_000, help="Assumed memory per watch list entry of an ended operation, in bytes."
        ),
    ] = BYTES_PER_WATCH,
    top: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Maximum number of rows to print per table.")] = 10,
    prometheus: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for the metrics in Prometheus text format, for node_exporter's textfile collector.",
        ),
    ] = None,
    json: job.JsonFile = None,
) -> None:
    """Compute Kafka's meters, waits and causes, purgatory sizes and rebalances; write tables and a summary."""
    from purgatory_udf.answers.diagnosis.diagnosis_run import diagnose
    from purgatory_udf.answers.metrics import as_json, summary, write_metrics
    from purgatory_udf.answers.prometheus import write_prometheus
    from purgatory_udf.backend.backend import running_tasks
    from purgatory_udf.backend.file_system import write_json
    from purgatory_udf.common.console import CommandSteps

    options = _options(window_ms, by, bytes_per_watch, top)
    backend = open_backend()
    with CommandSteps(running_tasks(backend)):
        metrics = write_metrics(backend, out, options)
        lines = summary(metrics)
        if prometheus is not None:
            write_prometheus(metrics, prometheus, diagnose(backend, out).findings)
    if json != Path("-"):
        print("\n".join(lines))
        if prometheus is not None:
            print(f"Prometheus: {prometheus}")
    if json is not None:
        write_json(json, as_json(metrics))


if __name__ == "__main__":
    main()
