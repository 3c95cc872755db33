"""A topic of a real broker on loopback, and a producer of lines."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Topic:
    """A topic, and the console producer that writes to it."""

    bootstrap: str
    name: str
    _lines: IO[bytes]

    def send(self, lines: Iterable[str]) -> None:
        self._lines.write("".join(f"{line}\n" for line in lines).encode())
        self._lines.flush()


@contextmanager
def create_topic(bootstrap: str, name: str) -> Iterator[Topic]:
    """Start a producer for the topic; the broker creates the topic with its first line."""
    from purgatory_udf.launch import runtimes

    tool = [str(runtimes.find_java()), "-Xmx128m", "-cp", _tools_class_path(), "org.apache.kafka.tools.ConsoleProducer"]
    command = [*tool, "--bootstrap-server", bootstrap, "--topic", name, "--request-required-acks", "all"]
    producer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert producer.stdin is not None
    try:
        yield Topic(bootstrap, name, producer.stdin)
    finally:
        producer.kill()
        producer.wait()


def _tools_class_path() -> str:
    """Return the class path of Kafka's jars and its tools, which are downloaded once."""
    import pyspark

    from purgatory_udf.launch import jars
    from tests.sources.kafka.broker import VERSION, kafka_class_path

    ivy = jars.ivy_home() / f"kafka-tools-{VERSION}"
    jar = ivy / "jars" / f"org.apache.kafka_kafka-tools-{VERSION}.jar"
    if not jar.exists():
        spark_home = Path(pyspark.__file__).parent
        # The broker's class path has all other dependencies.
        others = "com.*:*,net.*:*,io.*:*,ch.*:*,jakarta.*:*,javax.*:*,commons-*:*,org.eclipse.*:*,org.glassfish.*:*"
        jars.fetch_jars("Kafka's tools", f"org.apache.kafka:kafka-tools:{VERSION}", others, spark_home, ivy, os.environ)
    return f"{jar}:{kafka_class_path()}"


@contextmanager
def broker_in(folder: Path) -> Iterator[str]:
    """Start a broker with its files in the folder; yield its `host:port`."""
    from tests.sources.kafka.broker import broker

    folder.mkdir(parents=True, exist_ok=True)
    with broker(folder) as bootstrap:
        yield bootstrap
