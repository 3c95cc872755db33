"""Delta Lake's jars: fetched once by Spark's own Ivy, then found in its cache without asking the network."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from purgatory_udf.errors import UserError
from purgatory_udf.launch import trust

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
    group, artifact, version = coordinate(spark_version).split(":")
    jars = [ivy / "jars" / name for name in (f"{group}_{artifact}-{version}.jar", *REST)]
    # A zip's directory stands at its end: a file cut short is not a zip.
    return jars if all(jar.is_file() and zipfile.is_zipfile(jar) for jar in jars) else None


def fetch(
    spark_home: Path, spark_version: str, ivy: Path, environ: Mapping[str, str], options: Sequence[str] = ()
) -> list[Path]:
    """Let spark-submit resolve Delta into the cache by running an empty program; its talk is shown only if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        nothing = Path(folder, "nothing.py")
        nothing.write_text("", encoding="utf-8")
        command = [
            *(str(spark_home / "bin" / "spark-submit"), "--master", "local", *options),
            *("--packages", coordinate(spark_version), "--exclude-packages", _EXCLUDED),
            *("--conf", f"spark.jars.ivy={ivy}", str(nothing)),
        ]
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        done = _call(command, {**environ, **python})
        if "SSLHandshakeException" in done.stdout + done.stderr:
            ours = (environ.get("SPARK_SUBMIT_OPTS", ""), *trust.store(Path(folder, "trust")))
            done = _call(command, {**environ, **python, "SPARK_SUBMIT_OPTS": " ".join(ours)})
    jars = cached(spark_version, ivy)
    if done.returncode != 0 or jars is None:
        talk = "\n".join(f"  {line}" for line in _telling(done.stdout + done.stderr))
        raise UserError(
            f"Delta Lake {VERSION} for Spark {spark_version} could not be fetched from Maven into {ivy}"
            f" (is there a network, or a mirror set by spark.jars.ivySettings?). Spark said:\n{talk}"
        )
    return jars


def _call(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _telling(talk: str) -> list[str]:
    """The lines that say why: the servers' errors, or else whatever came last."""
    lines = [line.strip() for line in talk.splitlines() if line.strip() and not line.startswith("\tat ")]
    errors = [line for line in lines if "error" in line.lower() or "not found" in line]
    return list(dict.fromkeys(errors))[:5] or lines[-5:]
