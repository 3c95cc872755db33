"""`python -m tests.generate.interrupted_output`: archives interrupted replays of this version, for upgrade tests.

Run it for each release and after each change of a format. One replay has followed the first of three portions of a
trace with partitions and groups. The other one replays the whole trace without Spark, and has written some tables.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import write_deltalake

from purgatory_udf import __version__
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import FORMATS, ReplayOptions
from tests.streaming.growing_table import (
    CONFIG,
    append_events,
    growing_trace,
    process_all_available,
    replay_in_thread,
    split_trace,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDER = Path(__file__).parents[1] / "data" / "interrupted"
FOLLOWED, LOCAL = _FOLDER / "followed.tar.xz", _FOLDER / "local.tar.xz"
# File in each archive with the version that wrote it and its state formats.
MANIFEST = "made.json"
BY_BROKER = Config.model_validate(CONFIG.model_dump() | {"grouping": "broker"})


def write_followed(spark: SparkSession, folder: Path) -> None:
    """Write the output of a followed replay, with its events."""
    events = append_events(spark, folder, split_trace(growing_trace())[0])
    with replay_in_thread(spark, ReplayOptions(events, str(folder), BY_BROKER, follow=True)):
        process_all_available(spark)


def write_local(folder: Path) -> None:
    """Write an output as a kill leaves it: one table is missing, and the run is not recorded as finished."""
    write_deltalake(str(folder / "events"), event_table(growing_trace()))
    session: Any = LocalBackend()
    run_replay(session, ReplayOptions(str(folder / "events"), str(folder), BY_BROKER))
    shutil.rmtree(folder / "expirations")
    max((folder / "runs" / "_delta_log").glob("*.json")).unlink()


def write_archive(write: Callable[[Path], None], file: Path) -> None:
    """Write an output folder and its manifest, and compress them into an archive."""
    with tempfile.TemporaryDirectory() as place:
        write(Path(place))
        Path(place, MANIFEST).write_text(json.dumps({"version": __version__, "formats": FORMATS}) + "\n")
        compress_folder(Path(place), file)
    print(f"{file}: {file.stat().st_size:,} bytes")


def compress_folder(folder: Path, file: Path) -> None:
    """Write the files of a folder, without checksums, to a reproducible .tar.xz archive."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:xz", preset=9) as archive:
        for path in sorted(child for child in folder.rglob("*") if child.is_file() and not child.name.endswith(".crc")):
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def main() -> None:
    from purgatory_udf.launch.spark_session import build_session
    from tests.support import small_spark

    write_archive(write_local, LOCAL)
    spark = build_session("interrupted-output", {"spark.master": "local[2]", **small_spark.SETTINGS})
    write_archive(lambda place: write_followed(spark, place), FOLLOWED)
    spark.stop()


if __name__ == "__main__":
    main()
