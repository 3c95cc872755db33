"""A Kafka topic as rows: one a message, with its place in the topic and its text."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import functions as sf

from purgatory_udf import secrets
from purgatory_udf.errors import UserError
from purgatory_udf.kafka.options import KafkaTopic
from purgatory_udf.launch import delta, kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
ANSWERS_WITHIN_SECONDS = 10


def connect(spark: SparkSession, topic: KafkaTopic) -> None:
    """A UserError if no broker can be reached; else the session can read the topic."""
    _require_broker(topic)
    add_connector(spark)
    _require_client(spark, topic)


def add_connector(spark: SparkSession) -> None:
    """Give the session Spark's Kafka connector, unless it has one."""
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_PROVIDER)
    except Exception:
        for jar in _jars(spark):
            spark.sql(f"ADD JAR '{jar}'")


def whole(spark: SparkSession, topic: KafkaTopic) -> DataFrame:
    """All messages up to the present end."""
    return _rows(spark.read.format("kafka").options(**topic.reader()).load())


def growing(spark: SparkSession, topic: KafkaTopic) -> DataFrame:
    """All messages, as a stream."""
    return _rows(spark.readStream.format("kafka").options(**topic.reader()).load())


def _rows(messages: DataFrame) -> DataFrame:
    """A message is one line; a message without a value is an empty one."""
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
    raise UserError(f"--bootstrap {topic.bootstrap}: no broker can be reached: {why}")


def _require_client(spark: SparkSession, topic: KafkaTopic) -> None:
    """Kafka's own client takes the settings, and a broker answers it."""
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
        raise UserError(f"--bootstrap {topic.bootstrap}: Kafka's client is not served: {_cause(error)}") from None


def _cause(error: Py4JJavaError) -> str:
    """What was the matter first, in its words."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return secrets.hidden(str(cause.getMessage() or cause.getClass().getSimpleName()))


def _jars(spark: SparkSession) -> list[Path]:
    import pyspark

    ivy = Path(spark.conf.get("spark.jars.ivy", None) or delta.ivy_home())
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    # What a job was given by spark-submit is not for another one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    return kafka.cached(spark.version, ivy) or kafka.fetch(home, spark.version, ivy, environment)
