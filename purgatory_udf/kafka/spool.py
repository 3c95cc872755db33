"""A topic's messages as text files, one a partition, so that they are read as any recorded file is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from purgatory_udf.errors import UserError
from purgatory_udf.ingest.inputs import InputFile, find_files
from purgatory_udf.kafka.options import KafkaTopic
from purgatory_udf.kafka.source import whole
from purgatory_udf.storage.files import files_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTITION = re.compile(r"partition=(\d+)/")


@contextmanager
def spooled(spark: SparkSession, topic: KafkaTopic, folder: str) -> Iterator[list[InputFile]]:
    """The messages from the topic's beginning to its present end, in files named `TOPIC-PARTITION` below `folder`.

    A line's number in such a file is its message's place in what the topic still holds of the partition, from 1.
    """
    try:
        messages = whole(spark, topic)
        partitions = messages.select("partition").distinct().count()
        if not partitions:
            raise UserError(f"{topic.topic}: the topic holds no message")
        ordered = messages.repartition(partitions, "partition").sortWithinPartitions("partition", "offset")
        ordered.select("partition", sf.col("value")).write.mode("overwrite").partitionBy("partition").text(folder)
        yield sorted((_named(file, topic) for file in find_files([folder], (".txt",))), key=lambda file: file.name)
    finally:
        files_of(spark).remove(folder)


def _named(file: InputFile, topic: KafkaTopic) -> InputFile:
    """The file's age tells nothing of the messages: the same messages are the same input."""
    match = _PARTITION.search(file.path)
    assert match is not None
    return replace(file, name=f"{topic.topic}-{match[1]}", modified=None)
