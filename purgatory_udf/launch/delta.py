"""Delta Lake's jars: fetched once by Spark's own Ivy, then found in its cache without asking the network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from purgatory_udf.launch import maven

VERSION = "4.4.0"

# What Spark does not bring itself. Delta's other dependencies are older versions of jars that Spark has.
REST = (
    f"io.delta_delta-storage-{VERSION}.jar",
    f"io.delta_delta-kernel-api-{VERSION}.jar",
    f"io.delta_delta-kernel-defaults-{VERSION}.jar",
    f"io.delta_delta-kernel-unitycatalog-{VERSION}.jar",
    "io.unitycatalog_unitycatalog-client-0.6.0.jar",
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar",
)
_EXCLUDED = "org.*:*,com.*:*,commons-*:*,javax.*:*,io.airlift:*"


def coordinate(spark_version: str) -> str:
    """The Maven coordinate of Delta for a Spark version: its artifacts are named after Spark's minor version."""
    minor = ".".join(spark_version.split(".")[:2])
    return f"io.delta:delta-spark_{minor}_2.13:{VERSION}"


def ivy_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The cache that Spark itself uses by default, so that a second clone downloads nothing."""
    return Path(environ.get("HOME") or Path.home()) / ".ivy2.5.2"


def cached(spark_version: str, ivy: Path) -> list[Path] | None:
    """The jars in an Ivy cache, or None unless every one of them is there and whole."""
    return maven.whole(files(spark_version, ivy))


def files(spark_version: str, ivy: Path) -> list[Path]:
    """Where the jars lie in an Ivy cache."""
    group, artifact, version = coordinate(spark_version).split(":")
    return [ivy / "jars" / name for name in (f"{group}_{artifact}-{version}.jar", *REST)]


def fetch(
    spark_home: Path, spark_version: str, ivy: Path, environ: Mapping[str, str], options: Sequence[str] = ()
) -> list[Path]:
    """Resolve Delta into the cache. Raises UserError if that fails."""
    what = f"Delta Lake {VERSION} for Spark {spark_version}"
    maven.fetch(what, coordinate(spark_version), _EXCLUDED, spark_home, ivy, environ, options)
    return maven.require_whole(what, files(spark_version, ivy), ivy)
