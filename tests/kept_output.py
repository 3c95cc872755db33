"""`python -m tests.kept_output`: a followed replay of this version, stopped on its way, for the versions to come.

A release makes it anew. It has three portions of a trace of partitions and groups, of which the replay has seen one.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory_udf import __version__
from purgatory_udf.config import Config
from purgatory_udf.stream.asked import FORMATS
from purgatory_udf.stream.options import ReplayOptions
from tests.stream.followed import CONFIG, append, caught_up, following, portions, trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = Path(__file__).parent / "data" / "kept" / "followed.tar.xz"
# In the archive: by whom it was made, and in which formats a state is written there.
MADE = "made.json"
BY_BROKER = Config.model_validate(CONFIG.model_dump() | {"grouping": "broker"})


def make(spark: SparkSession, folder: Path) -> None:
    """An output with its events."""
    events = append(spark, folder, portions(trace())[0])
    with following(spark, ReplayOptions(events, str(folder), BY_BROKER, follow=True)):
        caught_up(spark)
    (folder / MADE).write_text(json.dumps({"version": __version__, "formats": FORMATS}) + "\n")


def pack(folder: Path, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:xz", preset=9) as packed:
        for path in sorted(one for one in folder.rglob("*") if one.is_file() and not one.name.endswith(".crc")):
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))


def main() -> None:
    from purgatory_udf.session import build_session
    from tests import brief

    with tempfile.TemporaryDirectory() as place:
        spark = build_session("kept-output", {"spark.master": "local[2]", **brief.SETTINGS})
        make(spark, Path(place))
        spark.stop()
        pack(Path(place), FILE)
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
