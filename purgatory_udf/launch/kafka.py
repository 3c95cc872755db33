"""Spark's Kafka connector: fetched only when a job asks for it, then found in Ivy's cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from purgatory_udf.launch import maven

# Central has no later one; the connector of Spark 4.2 works with it.
TOKENS_VERSION = "4.1.0-preview1"
CLIENTS_VERSION, POOL_VERSION = "3.9.2", "2.13.1"

_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
# What Spark brings itself.
_SPARKS = "org.scala-lang*:*,com.*:*,at.*:*,org.xerial*:*,org.slf4j:*,org.apache.hadoop:*"


def cached(spark_version: str, ivy: Path) -> list[Path] | None:
    """The jars in an Ivy cache, or None unless every one of them is there and whole."""
    return maven.whole(files(spark_version, ivy))


def files(spark_version: str, ivy: Path) -> list[Path]:
    """Where the jars lie in an Ivy cache."""
    names = (
        _file(_CONNECTOR, spark_version),
        _file(_TOKENS, TOKENS_VERSION),
        _file("org.apache.kafka:kafka-clients", CLIENTS_VERSION),
        _file("org.apache.commons:commons-pool2", POOL_VERSION),
    )
    return [ivy / "jars" / name for name in names]


def fetch(spark_home: Path, spark_version: str, ivy: Path, environ: Mapping[str, str]) -> list[Path]:
    """Resolve the connector into the cache. Raises UserError if that fails."""
    what = f"Spark's Kafka connector {spark_version}"
    # In two steps, because what is excluded below one coordinate cannot be named as another.
    maven.fetch(what, f"{_CONNECTOR}:{spark_version}", f"{_TOKENS},{_SPARKS}", spark_home, ivy, environ)
    others = f"{_SPARKS},org.apache.kafka:*,org.apache.commons:*"
    maven.fetch(what, f"{_TOKENS}:{TOKENS_VERSION}", others, spark_home, ivy, environ)
    return maven.require_whole(what, files(spark_version, ivy), ivy)


def _file(coordinate: str, version: str) -> str:
    """As Spark's Ivy names a jar."""
    return f"{coordinate.replace(':', '_')}-{version}.jar"
