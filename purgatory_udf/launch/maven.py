"""Jars from Maven: resolved by Spark's own Ivy into its cache, with whatever mirrors and proxies Spark is told of."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from purgatory_udf.errors import UserError
from purgatory_udf.launch import checksums, trust


def whole(jars: Iterable[Path]) -> list[Path] | None:
    """The jars, or None unless every one of them is there, and is what this version was made with."""
    given = list(jars)
    return None if any(map(amiss, given)) else given


def amiss(jar: Path) -> str | None:
    """What is wrong with the file; None if nothing is."""
    if not jar.is_file():
        return "not there"
    known = checksums.KNOWN.get(jar.name)
    if known is None:
        # Of another Spark's jars nothing is known. A zip's directory stands at its end: a file cut short is not a zip.
        return None if zipfile.is_zipfile(jar) else "no jar"
    with jar.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return None if digest == known else f"another file than this version was made with (SHA-256 {digest}, not {known})"


def fetch(
    what: str,
    coordinate: str,
    excluded: str,
    spark_home: Path,
    ivy: Path,
    environ: Mapping[str, str],
    options: Sequence[str] = (),
) -> None:
    """Let spark-submit resolve the coordinate by running an empty program; its talk is shown only if it fails."""
    with tempfile.TemporaryDirectory() as folder, _alone(ivy):
        nothing = Path(folder, "nothing.py")
        nothing.write_text("", encoding="utf-8")
        command = [
            *(str(spark_home / "bin" / "spark-submit"), "--master", "local", *options),
            *("--packages", coordinate),
            *(("--exclude-packages", excluded) if excluded else ()),
            *("--conf", f"spark.jars.ivy={ivy}", str(nothing)),
        ]
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        done = _call(command, {**environ, **python})
        if "SSLHandshakeException" in done.stdout + done.stderr:
            ours = (environ.get("SPARK_SUBMIT_OPTS", ""), *trust.store(Path(folder, "trust")))
            done = _call(command, {**environ, **python, "SPARK_SUBMIT_OPTS": " ".join(ours)})
    if done.returncode != 0:
        raise failure(what, ivy, done.stdout + done.stderr)


def require_whole(what: str, jars: list[Path], ivy: Path) -> list[Path]:
    """The jars; raises UserError unless every one of them is what this version was made with."""
    for jar in jars:
        wrong = amiss(jar)
        if wrong:
            raise UserError(
                f"{what}: {jar} is {wrong}. It is not used; delete {ivy} and try again, and if that does not help, "
                "ask whoever runs the mirror that spark.jars.ivySettings names"
            )
    return jars


def failure(what: str, ivy: Path, talk: str) -> UserError:
    excerpt = "\n".join(f"  {line}" for line in _telling(talk))
    return UserError(
        f"{what} could not be fetched from Maven into {ivy}"
        f" (is there a network, or a mirror set by spark.jars.ivySettings?). Spark said:\n{excerpt}"
    )


@contextmanager
def _alone(ivy: Path) -> Iterator[None]:
    """Ivy does not expect another to fill its cache at the same time. The kernel drops the lock with the process."""
    try:
        ivy.mkdir(parents=True, exist_ok=True)
        file = (ivy / "fetch.lock").open("w")
    except OSError:
        # A cache that cannot be written: Ivy says so itself.
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _call(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _telling(talk: str) -> list[str]:
    """The lines that say why: the servers' errors, or else whatever came last."""
    lines = [line.strip() for line in talk.splitlines() if line.strip() and not line.startswith("\tat ")]
    errors = [line for line in lines if "error" in line.lower() or "not found" in line]
    return list(dict.fromkeys(errors))[:5] or lines[-5:]
