"""Delta's jars and Spark's Kafka connector, fetched by Spark's Ivy into its cache and verified by checksum.

Ivy uses the mirrors and proxies that Spark is configured with. Jars in the cache are used without network access. If
Java does not trust a server's certificate, the fetch is repeated with the certificates that Python trusts. This helps
with a Java from PyPI, which does not know authorities that were added to the machine, such as a company's proxy.
"""

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

# SHA-256 of each jar that this version uses, by its file name in Ivy's cache. A jar with other content is rejected.
# After a version change run `sha256sum ~/.ivy2.5.2/jars/*` on a cache that Ivy has filled and checked itself.
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
    "org.apache.spark_spark-token-provider-kafka-0-10_2.13-4.2.0.jar": (
        "641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c"
    ),
}


PASSWORD = "changeit"  # Not a secret: the password of a trust store only guards against accidental changes.

_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2


def write_trust_store(file: Path) -> tuple[str, ...]:
    """Write the certificates that Python trusts as a Java trust store; return the JVM options that use it."""
    file.write_bytes(encode_key_store(ssl.create_default_context().get_ca_certs(binary_form=True)))
    return (f"-Djavax.net.ssl.trustStore={file}", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}")


def encode_key_store(certificates: list[bytes]) -> bytes:
    """Encode certificates in Java's key store format JKS: a header, one entry per certificate, and a keyed digest."""
    head = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    body = head + b"".join(_entry(f"ca-{index}", certificate) for index, certificate in enumerate(certificates))
    return body + hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def _entry(alias: str, certificate: bytes) -> bytes:
    made_at = 0
    head = struct.pack(">I", _TRUSTED) + _text(alias) + struct.pack(">Q", made_at) + _text("X.509")
    return head + struct.pack(">I", len(certificate)) + certificate


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")


def verified_jars(jars: Iterable[Path]) -> list[Path] | None:
    """Return the jars, or None unless all exist and have the expected checksums."""
    given = list(jars)
    return None if any(map(find_problem, given)) else given


def find_problem(jar: Path) -> str | None:
    """Return the problem with a jar, or None."""
    if not jar.is_file():
        return "missing"
    known = KNOWN_CHECKSUMS.get(jar.name)
    if known is None:
        # Jars of another Spark version have no known checksum. A zip's directory is at its end, so a truncated file is
        # not a zip file.
        return None if zipfile.is_zipfile(jar) else "not a jar file"
    with jar.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return None if digest == known else f"not the expected file (its SHA-256 is {digest}, not {known})"


def fetch_jars(
    what: str,
    coordinate: str,
    excluded: str,
    spark_home: Path,
    ivy: Path,
    environ: Mapping[str, str],
    options: Sequence[str] = (),
) -> None:
    """Fetch a Maven coordinate and its dependencies by running an empty program with spark-submit.

    Args:
        what: Name of the jars in an error message.
        coordinate: Maven coordinate, `group:artifact:version`.
        excluded: Coordinates of dependencies that are not fetched, separated by commas.
        spark_home: Folder of Spark.
        ivy: Ivy cache that gets the jars.
        environ: Environment of spark-submit.
        options: Further options of spark-submit, such as a mirror.

    Raises:
        UserError: The jars cannot be fetched.
    """
    with tempfile.TemporaryDirectory() as folder, _cache_lock(ivy):
        empty_program = Path(folder, "empty_program.py")
        empty_program.write_text("", encoding="utf-8")
        command = [
            *(str(spark_home / "bin" / "spark-submit"), "--master", "local", *options),
            *("--packages", coordinate),
            *(("--exclude-packages", excluded) if excluded else ()),
            *("--conf", f"spark.jars.ivy={ivy}", str(empty_program)),
        ]
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        done = _run_spark_submit(command, {**environ, **python})
        if "SSLHandshakeException" in done.stdout + done.stderr:
            ours = (environ.get("SPARK_SUBMIT_OPTS", ""), *write_trust_store(Path(folder, "trust")))
            done = _run_spark_submit(command, {**environ, **python, "SPARK_SUBMIT_OPTS": " ".join(ours)})
    if done.returncode != 0:
        raise fetch_error(what, ivy, done.stdout + done.stderr)


def require_verified(what: str, jars: list[Path], ivy: Path) -> list[Path]:
    """Return the jars; raise UserError unless all have the expected checksums.

    The message names `what`, and the cache `ivy` to delete.
    """
    for jar in jars:
        wrong = find_problem(jar)
        if wrong:
            raise UserError(
                f"{what}: {jar} is {wrong}. Delete {ivy} and try again; if that does not help, ask the operator of "
                "the Maven mirror in spark.jars.ivySettings"
            )
    return jars


def fetch_error(what: str, ivy: Path, output: str) -> UserError:
    """Return the error for a failed fetch of the jars `what` into the cache `ivy`.

    The message contains the error lines of `output`, which is that of spark-submit.
    """
    excerpt = "\n".join(f"  {line}" for line in _error_lines(output))
    return UserError(
        f"{what} could not be fetched from Maven into {ivy}"
        f" (is the network available, or a mirror set in spark.jars.ivySettings?). Spark reported:\n{excerpt}"
    )


@contextmanager
def _cache_lock(ivy: Path) -> Iterator[None]:
    """Lock the cache, because Ivy does not support concurrent writers.

    The kernel releases the lock with the process.
    """
    try:
        ivy.mkdir(parents=True, exist_ok=True)
        file = (ivy / "fetch.lock").open("w")
    except OSError:
        # The cache is not writable: Ivy reports that itself.
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run_spark_submit(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _error_lines(output: str) -> list[str]:
    """Return the lines with the servers' errors, or else the last lines."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("\tat ")]
    errors = [line for line in lines if "error" in line.lower() or "not found" in line]
    return list(dict.fromkeys(errors))[:5] or lines[-5:]


DELTA_VERSION = "4.4.0"

# Delta's dependencies that Spark does not have. The others are older versions of jars that Spark has.
DELTA_DEPENDENCIES = (
    f"io.delta_delta-storage-{DELTA_VERSION}.jar",
    f"io.delta_delta-kernel-api-{DELTA_VERSION}.jar",
    f"io.delta_delta-kernel-defaults-{DELTA_VERSION}.jar",
    f"io.delta_delta-kernel-unitycatalog-{DELTA_VERSION}.jar",
    "io.unitycatalog_unitycatalog-client-0.6.0.jar",
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar",
)
_DELTA_EXCLUDED = "org.*:*,com.*:*,commons-*:*,javax.*:*,io.airlift:*"


def delta_coordinate(spark_version: str) -> str:
    """Return the Maven coordinate of Delta for a Spark version; its artifacts are named after Spark's minor version."""
    minor = ".".join(spark_version.split(".")[:2])
    return f"io.delta:delta-spark_{minor}_2.13:{DELTA_VERSION}"


def ivy_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return Spark's default Ivy cache, which all clones share."""
    return Path(environ.get("HOME") or Path.home()) / ".ivy2.5.2"


def cached_delta_jars(spark_version: str, ivy: Path) -> list[Path] | None:
    """Return Delta's jars in an Ivy cache, or None unless all are present and verified."""
    return verified_jars(delta_jar_paths(spark_version, ivy))


def delta_jar_paths(spark_version: str, ivy: Path) -> list[Path]:
    """Return the paths of Delta's jars in an Ivy cache."""
    group, artifact, version = delta_coordinate(spark_version).split(":")
    return [ivy / "jars" / name for name in (f"{group}_{artifact}-{version}.jar", *DELTA_DEPENDENCIES)]


def fetch_delta(
    spark_home: Path, spark_version: str, ivy: Path, environ: Mapping[str, str], options: Sequence[str] = ()
) -> list[Path]:
    """Fetch Delta into the cache `ivy`. Raises UserError if that fails. For the other arguments see `fetch_jars`."""
    what = f"Delta Lake {DELTA_VERSION} for Spark {spark_version}"
    fetch_jars(what, delta_coordinate(spark_version), _DELTA_EXCLUDED, spark_home, ivy, environ, options)
    return require_verified(what, delta_jar_paths(spark_version, ivy), ivy)


# Pinned separately from the connector: Maven Central lacks the token provider of some Spark releases, such as 4.1.0.
TOKEN_PROVIDER_VERSION = "4.2.0"
CLIENTS_VERSION, POOL_VERSION = "3.9.2", "2.13.1"

_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_TOKEN_PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
# Provided by Spark.
_PROVIDED_BY_SPARK = "org.scala-lang*:*,com.*:*,at.*:*,org.xerial*:*,org.slf4j:*,org.apache.hadoop:*"


def cached_kafka_jars(spark_version: str, ivy: Path) -> list[Path] | None:
    """Return the connector's jars in an Ivy cache, or None unless all are present and verified."""
    return verified_jars(kafka_jar_paths(spark_version, ivy))


def kafka_jar_paths(spark_version: str, ivy: Path) -> list[Path]:
    """Return the paths of the connector's jars in an Ivy cache."""
    names = (
        _jar_name(_CONNECTOR, spark_version),
        _jar_name(_TOKEN_PROVIDER, TOKEN_PROVIDER_VERSION),
        _jar_name("org.apache.kafka:kafka-clients", CLIENTS_VERSION),
        _jar_name("org.apache.commons:commons-pool2", POOL_VERSION),
    )
    return [ivy / "jars" / name for name in names]


def fetch_kafka(spark_home: Path, spark_version: str, ivy: Path, environ: Mapping[str, str]) -> list[Path]:
    """Fetch Spark's Kafka connector into the cache `ivy`. Raises UserError if that fails.

    `environ` is the environment of spark-submit.
    """
    what = f"Spark's Kafka connector {spark_version}"
    # In two steps, because an artifact that is excluded from one coordinate cannot be requested as another.
    fetch_jars(
        what, f"{_CONNECTOR}:{spark_version}", f"{_TOKEN_PROVIDER},{_PROVIDED_BY_SPARK}", spark_home, ivy, environ
    )
    others = f"{_PROVIDED_BY_SPARK},org.apache.kafka:*,org.apache.commons:*"
    fetch_jars(what, f"{_TOKEN_PROVIDER}:{TOKEN_PROVIDER_VERSION}", others, spark_home, ivy, environ)
    return require_verified(what, kafka_jar_paths(spark_version, ivy), ivy)


def _jar_name(coordinate: str, version: str) -> str:
    """Return the file name of a jar in Spark's Ivy cache, given its coordinate `group:artifact` and its version."""
    return f"{coordinate.replace(':', '_')}-{version}.jar"
