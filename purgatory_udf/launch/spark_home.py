"""The Spark that runs the jobs: SPARK_HOME's if it is set, else the one in our environment."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from purgatory_udf.errors import UserError
from purgatory_udf.properties import read_properties

WANTED, TESTED = "4.2", "4.2.0"


def find(environ: Mapping[str, str]) -> Path:
    """The folder with `bin/spark-submit`."""
    if environ.get("SPARK_HOME"):
        home = Path(environ["SPARK_HOME"])
        if not (home / "bin" / "spark-submit").is_file():
            raise UserError(f"SPARK_HOME={home}: no bin/spark-submit in it")
        return home
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise UserError("pyspark is not installed, and SPARK_HOME is not set")
    return Path(package.origin).parent


def is_ours(home: Path) -> bool:
    """Whether it is the Spark whose Python part this process imports."""
    package = importlib.util.find_spec("pyspark")
    return package is not None and package.origin is not None and Path(package.origin).parent == home


def version(home: Path) -> str | None:
    """Spark's version, from the name of its core jar; None if that cannot be told."""
    jars = sorted((home / "jars").glob("spark-core_*.jar"))
    return jars[-1].stem.rpartition("-")[2] if jars else None


def has_delta(home: Path) -> bool:
    """Whether this Spark brings Delta itself."""
    return any((home / "jars").glob("delta-spark*.jar"))


def defaults(home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What this Spark is configured to do when nobody says otherwise."""
    file = Path(environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    return read_properties(file) if file.is_file() else {}
