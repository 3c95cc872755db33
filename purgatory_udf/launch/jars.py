"""Jars from Maven: resolved by Spark's own Ivy into its cache, with whatever mirrors and proxies Spark is told of."""

from __future__ import annotations

import fcntl
import hashlib
import os
import ssl
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from purgatory_udf.common.errors import UserError

# The jars that this version was made with: SHA-256 by the name that Spark's Ivy gives the file.
#
# A jar of another content is not used, whoever served it. A change of a version in `delta` or `kafka` needs new lines:
# `sha256sum ~/.ivy2.5.2/jars/*`, once Ivy has fetched them and held them against the checksums of their publisher.


KNOWN_CHECKSUMS = {
    "io.delta_delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "io.delta_delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "io.delta_delta-kernel-unitycatalog-4.4.0.jar": (
        "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"
    ),
    "io.delta_delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "io.delta_delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "io.unitycatalog_unitycatalog-client-0.6.0.jar": (
        "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19"
    ),
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar": (
        "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150"
    ),
    "org.apache.commons_commons-pool2-2.13.1.jar": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    "org.apache.kafka_kafka-clients-3.9.2.jar": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    "org.apache.spark_spark-sql-kafka-0-10_2.13-4.2.0.jar": (
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"
    ),
    "org.apache.spark_spark-token-provider-kafka-0-10_2.13-4.1.0-preview1.jar": (
        "ab6e27a8a47ce63348dd0ecbd5543dc6212b4783180305cde5749e79684ea97b"
    ),
}


# The certificates that Python trusts, as a Java trust store.
#
# A Java from PyPI brings its own list, and knows nothing of an authority that the machine's owner has added (a
# company's proxy, say). Where Java finds a server untrustworthy, Python's list gets a second say.


PASSWORD = "changeit"  # Not a secret: a trust store's password only guards against accidental damage.

_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2


def trust_store(file: Path) -> tuple[str, ...]:
    """Write the store and return the JVM options that make it count."""
    file.write_bytes(encode(ssl.create_default_context().get_ca_certs(binary_form=True)))
    return (f"-Djavax.net.ssl.trustStore={file}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}")


def encode(certificates: list[bytes]) -> bytes:
    """Java's own key store format, JKS: a header, an entry a certificate, and a keyed digest over both."""
    head = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    body = head + b"".join(_entry(f"ca-{index}", certificate) for index, certificate in enumerate(certificates))
    return body + hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def _entry(alias: str, certificate: bytes) -> bytes:
    made_at = 0
    head = struct.pack(">I", _TRUSTED) + _text(alias) + struct.pack(">Q", made_at) + _text("X.509")
    return head + struct.pack(">I", len(certificate)) + certificate


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")


def whole(jars: Iterable[Path]) -> list[Path] | None:
    """The jars, or None unless every one of them is there, and is what this version was made with."""
    given = list(jars)
    return None if any(map(amiss, given)) else given


def amiss(jar: Path) -> str | None:
    """What is wrong with the file; None if nothing is."""
    if not jar.is_file():
        return "not there"
    known = KNOWN_CHECKSUMS.get(jar.name)
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
            ours = (environ.get("SPARK_SUBMIT_OPTS", ""), *trust_store(Path(folder, "trust")))
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


# Delta Lake's jars: fetched once by Spark's own Ivy, then found in its cache without asking the network.


DELTA_VERSION = "4.4.0"

# What Spark does not bring itself. Delta's other dependencies are older versions of jars that Spark has.
DELTA_DEPENDENCIES = (
    f"io.delta_delta-storage-{DELTA_VERSION}.jar",
    f"io.delta_delta-kernel-api-{DELTA_VERSION}.jar",
    f"io.delta_delta-kernel-defaults-{DELTA_VERSION}.jar",
    f"io.delta_delta-kernel-unitycatalog-{DELTA_VERSION}.jar",
    "io.unitycatalog_unitycatalog-client-0.6.0.jar",
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar",
)
_EXCLUDED = "org.*:*,com.*:*,commons-*:*,javax.*:*,io.airlift:*"


def coordinate(spark_version: str) -> str:
    """The Maven coordinate of Delta for a Spark version: its artifacts are named after Spark's minor version."""
    minor = ".".join(spark_version.split(".")[:2])
    return f"io.delta:delta-spark_{minor}_2.13:{DELTA_VERSION}"


def ivy_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The cache that Spark itself uses by default, so that a second clone downloads nothing."""
    return Path(environ.get("HOME") or Path.home()) / ".ivy2.5.2"


def delta_cached(spark_version: str, ivy: Path) -> list[Path] | None:
    """The jars in an Ivy cache, or None unless every one of them is there and whole."""
    return whole(delta_files(spark_version, ivy))


def delta_files(spark_version: str, ivy: Path) -> list[Path]:
    """Where the jars lie in an Ivy cache."""
    group, artifact, version = coordinate(spark_version).split(":")
    return [ivy / "jars" / name for name in (f"{group}_{artifact}-{version}.jar", *DELTA_DEPENDENCIES)]


def fetch_delta(
    spark_home: Path, spark_version: str, ivy: Path, environ: Mapping[str, str], options: Sequence[str] = ()
) -> list[Path]:
    """Resolve Delta into the cache. Raises UserError if that fails."""
    what = f"Delta Lake {DELTA_VERSION} for Spark {spark_version}"
    fetch(what, coordinate(spark_version), _EXCLUDED, spark_home, ivy, environ, options)
    return require_whole(what, delta_files(spark_version, ivy), ivy)


# Spark's Kafka connector: fetched only when a job asks for it, then found in Ivy's cache.


# Central has no later one; the connector of Spark 4.2 works with it.
TOKENS_VERSION = "4.1.0-preview1"
CLIENTS_VERSION, POOL_VERSION = "3.9.2", "2.13.1"

_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
# What Spark brings itself.
_SPARKS = "org.scala-lang*:*,com.*:*,at.*:*,org.xerial*:*,org.slf4j:*,org.apache.hadoop:*"


def kafka_cached(spark_version: str, ivy: Path) -> list[Path] | None:
    """The jars in an Ivy cache, or None unless every one of them is there and whole."""
    return whole(kafka_files(spark_version, ivy))


def kafka_files(spark_version: str, ivy: Path) -> list[Path]:
    """Where the jars lie in an Ivy cache."""
    names = (
        _file(_CONNECTOR, spark_version),
        _file(_TOKENS, TOKENS_VERSION),
        _file("org.apache.kafka:kafka-clients", CLIENTS_VERSION),
        _file("org.apache.commons:commons-pool2", POOL_VERSION),
    )
    return [ivy / "jars" / name for name in names]


def fetch_kafka(spark_home: Path, spark_version: str, ivy: Path, environ: Mapping[str, str]) -> list[Path]:
    """Resolve the connector into the cache. Raises UserError if that fails."""
    what = f"Spark's Kafka connector {spark_version}"
    # In two steps, because what is excluded below one coordinate cannot be named as another.
    fetch(what, f"{_CONNECTOR}:{spark_version}", f"{_TOKENS},{_SPARKS}", spark_home, ivy, environ)
    others = f"{_SPARKS},org.apache.kafka:*,org.apache.commons:*"
    fetch(what, f"{_TOKENS}:{TOKENS_VERSION}", others, spark_home, ivy, environ)
    return require_whole(what, kafka_files(spark_version, ivy), ivy)


def _file(coordinate: str, version: str) -> str:
    """As Spark's Ivy names a jar."""
    return f"{coordinate.replace(':', '_')}-{version}.jar"
