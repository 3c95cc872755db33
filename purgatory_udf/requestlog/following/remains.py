"""What steps leave to the next in files: one folder a step, of which the last two stay.

The step before the last is needed when the last is taken again, because its end was not yet on record. Whether one was
taken by Spark or in this process, either may take the next.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.errors import UserError
from purgatory_udf.query import local
from purgatory_udf.requestlog.following.carried import Carried
from purgatory_udf.requestlog.following.rows import KEPT
from purgatory_udf.requestlog.importing.rows import REQUESTS
from purgatory_udf.storage.files import files_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CARRIED, _REQUESTS, _ROWS, _STAGES = "carried", "requests", "rows", "stages"


def step_folder(folder: str, step: int) -> str:
    return f"{folder}/step-{step}"


@dataclass(frozen=True)
class Left:
    """`requests` that are not settled yet; `rows` are all else that is kept (KEPT)."""

    carried: Carried
    requests: DataFrame
    rows: DataFrame


class Remains:
    """Each step is begun, staged and ended, in this order; one that was not ended can be begun again."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark, self._files = spark, files_of(spark)
        self._folder = folder

    def begin(self, step: int) -> Left:
        """What the step before has left."""
        self._files.remove(self._of(step))
        if not step:
            return Left(Carried(), self._empty(REQUESTS), self._empty(KEPT))
        before = self._of(step - 1)
        if not self._files.exists(f"{before}/{_CARRIED}"):
            raise UserError(f"{before}: what was held back there is gone; --overwrite begins anew")
        return Left(self.carried(step - 1), self._read(f"{before}/{_REQUESTS}"), self._read(f"{before}/{_ROWS}"))

    def carried(self, step: int) -> Carried:
        row = self._read(f"{self._of(step)}/{_CARRIED}").first()
        assert row is not None
        return Carried.resumed(json.loads(row[0]))

    def stage(self, step: int, name: str, frame: DataFrame) -> DataFrame:
        """The same rows, worked out once."""
        if local(self._spark):
            return frame.cache()
        return self._kept(f"{self._of(step)}/{_STAGES}/{name}", frame)

    def end(self, step: int, left: Left) -> int:
        """How many requests are held back."""
        held = self._kept(f"{self._of(step)}/{_REQUESTS}", left.requests).count()
        self._kept(f"{self._of(step)}/{_ROWS}", left.rows)
        text = json.dumps(left.carried.snapshot())
        self._kept(f"{self._of(step)}/{_CARRIED}", self._spark.createDataFrame([(text,)], "json STRING").coalesce(1))
        self._files.remove(f"{self._of(step)}/{_STAGES}")
        self._files.remove(self._of(step - 2))
        return held

    def _of(self, step: int) -> str:
        return step_folder(self._folder, step)

    def _empty(self, schema: pa.Schema) -> DataFrame:
        return self._spark.createDataFrame([], from_arrow_schema(schema))

    def _read(self, path: str) -> DataFrame:
        return self._spark.read.parquet(path)

    def _kept(self, path: str, frame: DataFrame) -> DataFrame:
        if local(self._spark):
            frame = frame.cache()
            frame.write.mode("overwrite").parquet(path)
            return frame
        frame.write.mode("overwrite").parquet(path)
        return self._spark.read.schema(frame.schema).parquet(path)
