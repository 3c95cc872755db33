"""A topic of a real broker on loopback, and somebody who writes lines to it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Topic:
    bootstrap: str
    name: str
    _lines: IO[bytes]

    def send(self, lines: Iterable[str]) -> None:
        self._lines.write("".join(f"{line}\n" for line in lines).encode())
        self._lines.flush()


@contextmanager
def topic(bootstrap: str, name: str) -> Iterator[Topic]:
    """The topic is made with its first line."""
    from purgatory_udf.launch import java
    from tests.kafka.broker import class_path

    tool = [str(java.find()), "-Xmx128m", "-cp", class_path(), "org.apache.kafka.tools.ConsoleProducer"]
    words = [*tool, "--bootstrap-server", bootstrap, "--topic", name, "--request-required-acks", "all"]
    producer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert producer.stdin is not None
    try:
        yield Topic(bootstrap, name, producer.stdin)
    finally:
        producer.kill()
        producer.wait()


@contextmanager
def broker_of(folder: Path) -> Iterator[str]:
    """`host:port` of a broker whose files lie in the folder."""
    from tests.kafka.broker import broker

    folder.mkdir(parents=True, exist_ok=True)
    with broker(folder) as bootstrap:
        yield bootstrap
