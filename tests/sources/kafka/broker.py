"""A real broker on the loopback interface: one node that is also the controller, started from Kafka's jars."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from purgatory_udf.launch import jars, runtimes

VERSION = "4.3.1"
_SPARK = Path(pyspark.__file__).parent
# Options for little memory and a fast start.
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAg"


def kafka_class_path() -> str:
    """Return the class path of Kafka's jars, which are downloaded once into a separate Ivy cache."""
    ivy = jars.ivy_home() / f"kafka-{VERSION}"
    complete = ivy / "complete"
    if not complete.exists():
        jars.fetch_jars(f"Kafka {VERSION}", f"org.apache.kafka:kafka_2.13:{VERSION}", "", _SPARK, ivy, os.environ)
        complete.touch()
    # The Ivy resolution of Spark omits Scala, which Spark provides.
    (scala,) = (_SPARK / "jars").glob("scala-library-*.jar")
    return ":".join(map(str, [*sorted((ivy / "jars").glob("*.jar")), scala]))


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Start a broker with its files in a folder, yield `host:port`, and stop it at the end.

    The broker may not be ready yet.
    """
    port, controller = _free_port(), _free_port()
    properties = folder / "server.properties"
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        "controller.listener.names=CONTROLLER\n"
        f"log.dirs={folder / 'logs'}\n"
        "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n"
    )
    runtime = runtimes.find_java()
    assert runtime is not None
    command = [str(runtime), *_JVM, "-cp", kafka_class_path()]
    subprocess.run(
        [*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)],
        check=True,
        capture_output=True,
    )
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen([*command, "kafka.Kafka", str(properties)], stdout=out, stderr=subprocess.STDOUT)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
