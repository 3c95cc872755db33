"""`python -m tests.generate.interrupted_output`: interrupted replays of this version, for upgrade tests.

A release makes them anew, and so does who changes a format. One has followed the first of three portions of a trace of
partitions and groups; the other was to replay all of it without Spark, and had written some of its tables.
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
from purgatory_udf.backend.dialect import locally
from purgatory_udf.backend.local.session import LocalSession
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.streaming.replay_options import ReplayOptions
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import FORMATS
from tests.streaming.followed import CONFIG, append, caught_up, following, portions, trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEPT = Path(__file__).parents[1] / "data" / "kept"
FOLLOWED, HERE = _KEPT / "followed.tar.xz", _KEPT / "here.tar.xz"
# In the archive: by whom it was made, and in which formats a state is written there.
MADE = "made.json"
BY_BROKER = Config.model_validate(CONFIG.model_dump() | {"grouping": "broker"})


def make(spark: SparkSession, folder: Path) -> None:
    """An output with its events."""
    events = append(spark, folder, portions(trace())[0])
    with following(spark, ReplayOptions(events, str(folder), BY_BROKER, follow=True)):
        caught_up(spark)


def make_here(folder: Path) -> None:
    """An output as a kill leaves it: one table was not written yet, and the run's end is not on record."""
    write_deltalake(str(folder / "events"), event_table(trace()))
    with locally():
        here: Any = LocalSession()
        run_replay(here, ReplayOptions(str(folder / "events"), str(folder), BY_BROKER))
    shutil.rmtree(folder / "expirations")
    max((folder / "runs" / "_delta_log").glob("*.json")).unlink()


def keep(make: Callable[[Path], None], file: Path) -> None:
    """In the archive, with by whom it was made, and in which formats."""
    with tempfile.TemporaryDirectory() as place:
        make(Path(place))
        Path(place, MADE).write_text(json.dumps({"version": __version__, "formats": FORMATS}) + "\n")
        pack(Path(place), file)
    print(f"{file}: {file.stat().st_size:,} bytes")


def pack(folder: Path, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:xz", preset=9) as packed:
        for path in sorted(child for child in folder.rglob("*") if child.is_file() and not child.name.endswith(".crc")):
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))


def main() -> None:
    from purgatory_udf.launch.spark_session import build_session
    from tests.support import small_spark

    keep(make_here, HERE)
    spark = build_session("kept-output", {"spark.master": "local[2]", **small_spark.SETTINGS})
    keep(lambda place: make(spark, place), FOLLOWED)
    spark.stop()


if __name__ == "__main__":
    main()
