"""A Kafka topic as input: its options, the connection, and its messages as Spark DataFrames or text files."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from purgatory_udf.backend.file_system import HadoopFiles
from purgatory_udf.common import secrets
from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import jars
from purgatory_udf.sources.trace_files.input_files import InputFile, find_files

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession


_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:]+\]|[\w.-]+):(\d{1,5})")
_TOPIC = re.compile(r"[\w.-]{1,249}")


# Options that need a request log that is read once, each with the reason.
_NOT_FOLLOWED = {
    "batches": "the file does not have later batches",
    "isr": "the file does not have later changes; METADATA responses in the log do",
    "anonymise": "requests that are held back keep their names; anonymise when the topic is read once",
}


class Messages(StrEnum):
    """Content of a topic's messages, as in `ingest --messages`."""

    EVENTS = "events"
    REQUEST_LOG = "request-log"


@dataclass(frozen=True)
class KafkaTopic:
    """A topic of a cluster.

    `client` has settings of Kafka's consumer, such as `security.protocol=SASL_SSL`, and `client_file` names a file with
    more of them. They may contain secrets, so they are neither printed nor stored in tables.
    """

    bootstrap: str
    topic: str
    messages: Messages = Messages.EVENTS
    client: Sequence[str] = field(default=(), repr=False)
    client_file: str | None = None

    def __post_init__(self) -> None:
        self.addresses()
        if not _TOPIC.fullmatch(self.topic):
            raise UserError(f"--topic {self.topic}: expected a topic name of 1 to 249 letters, digits, . _ -")
        for setting in self.client:
            key, equals, value = setting.partition("=")
            if not key or not equals:
                raise UserError(f"--client {key[:1]}…: expected KEY=VALUE")
            secrets.require_no_secret("--client", key, value)
        self.reader()

    def require_applicable_options(self, given: Mapping[str, object]) -> None:
        """Raise `UserError` if an option of the ingest, given by name, does not apply to these messages."""
        if self.messages is Messages.EVENTS:
            for name in ("topics", "batches", "isr", "zone", "anonymise", "anonymise_key"):
                if given.get(name):
                    raise UserError(f"--{name.replace('_', '-')} requires --messages request-log")
            if given.get("hold_ms") is not None:
                raise UserError("--hold-ms requires --messages request-log")
            return
        if given.get("max_disorder_ms") is not None:
            raise UserError("--max-disorder-ms requires --messages events: a request log may be in any order")
        for name, why in _NOT_FOLLOWED.items():
            if given.get("follow") and given.get(name):
                raise UserError(f"--{name} cannot be used with --follow: {why}")
        if given.get("hold_ms") is not None and not given.get("follow"):
            raise UserError("--hold-ms requires --follow: a topic that is read once needs no hold time")

    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of each bootstrap server. Raises UserError if one is not `HOST:PORT`."""
        addresses = []
        for word in self.bootstrap.split(","):
            match = _ADDRESS.fullmatch(word.strip())
            if match is None:
                raise UserError(f"--bootstrap {self.bootstrap}: expected HOST:PORT, separated by commas")
            addresses.append((match[1].strip("[]"), int(match[2])))
        return addresses

    def reader(self) -> dict[str, str]:
        """Return the options of Spark's Kafka connector."""
        given = {key: secrets.resolve_environment(value) for key, value in (word.split("=", 1) for word in self.client)}
        if self.client_file:
            given = secrets.read_secret_properties(self.client_file) | given
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            **{f"kafka.{key}": value for key, value in given.items()},
        }


# A message of a topic: partition, offset and text.
MESSAGES = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.string())])

_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
ANSWERS_WITHIN_SECONDS = 10


def connect(spark: SparkSession, topic: KafkaTopic) -> None:
    """Add the connector to the session. Raises `UserError` if no broker can be reached."""
    _require_broker(topic)
    add_connector(spark)
    _require_client(spark, topic)


def add_connector(spark: SparkSession) -> None:
    """Add Spark's Kafka connector to the session unless it has one."""
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_PROVIDER)
    except Exception:
        for jar in _jars(spark):
            spark.sql(f"ADD JAR '{jar}'")


def read_all(spark: SparkSession, topic: KafkaTopic) -> DataFrame:
    """Return all messages up to the current end of the topic."""
    return _rows(spark.read.format("kafka").options(**topic.reader()).load())


def read_stream(spark: SparkSession, topic: KafkaTopic) -> DataFrame:
    """Return a streaming DataFrame of all messages, from the earliest one on."""
    return _rows(spark.readStream.format("kafka").options(**topic.reader()).load())


def _rows(messages: DataFrame) -> DataFrame:
    """Return the messages as lines: line breaks become spaces, and a null value becomes an empty line."""
    from pyspark.sql import functions as sf

    text = sf.regexp_replace(sf.coalesce(sf.col("value").cast("string"), sf.lit("")), r"[\r\n]+", " ")
    return messages.select("partition", "offset", text.alias("value"))


def _require_broker(topic: KafkaTopic) -> None:
    why = ""
    for address in topic.addresses():
        try:
            with socket.create_connection(address, ANSWERS_WITHIN_SECONDS):
                return
        except OSError as error:
            why = error.strerror or str(error)
    raise UserError(
        f"--bootstrap {topic.bootstrap}: no broker can be reached: {why}; check the addresses and the network"
    )


def _require_client(spark: SparkSession, topic: KafkaTopic) -> None:
    """Raise `UserError` if Kafka's client rejects the settings or gets no response."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    settings = jvm.java.util.Properties()
    for key, value in topic.reader().items():
        if key.startswith("kafka."):
            settings.setProperty(key.removeprefix("kafka."), value)
    try:
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        try:
            admin.describeCluster().nodes().get()
        finally:
            admin.close()
    except Py4JJavaError as error:
        raise UserError(f"--bootstrap {topic.bootstrap}: Kafka's client failed: {_cause(error)}") from None


def _cause(error: Py4JJavaError) -> str:
    """Return the message of the root cause, without secrets."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return secrets.redact(str(cause.getMessage() or cause.getClass().getSimpleName()))


def _jars(spark: SparkSession) -> list[Path]:
    import pyspark

    ivy = Path(spark.conf.get("spark.jars.ivy", None) or jars.ivy_home())
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    # Variables of this job's spark-submit must not reach another one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    return jars.cached_kafka_jars(spark.version, ivy) or jars.fetch_kafka(home, spark.version, ivy, environment)


_PARTITION = re.compile(r"partition=(\d+)/")


@contextmanager
def spool_messages(spark: SparkSession, topic: KafkaTopic, folder: str) -> Iterator[list[InputFile]]:
    """Write the messages up to the current end of the topic to text files, and yield these.

    Each partition is a file named `TOPIC-PARTITION` below `folder`, which is removed at the end. Line numbers start at
    1, for the earliest message that the topic still has.

    Raises:
        UserError: The topic has no messages.
    """
    from pyspark.sql import functions as sf

    try:
        messages = read_all(spark, topic)
        partitions = messages.select("partition").distinct().count()
        if not partitions:
            raise UserError(f"{topic.topic}: the topic has no messages")
        ordered = messages.repartition(partitions, "partition").sortWithinPartitions("partition", "offset")
        ordered.select("partition", sf.col("value")).write.mode("overwrite").partitionBy("partition").text(folder)
        yield sorted((_named(file, topic) for file in find_files([folder], (".txt",))), key=lambda file: file.name)
    finally:
        HadoopFiles(spark).remove(folder)


def _named(file: InputFile, topic: KafkaTopic) -> InputFile:
    """Return the file with its partition as name and without a time, so that equal messages are equal input."""
    match = _PARTITION.search(file.path)
    assert match is not None
    return replace(file, name=f"{topic.topic}-{match[1]}", modified=None)
