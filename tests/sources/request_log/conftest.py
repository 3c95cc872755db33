"""A piece of a real recording, imported, replayed and held against what its brokers did: once for all questions."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKERS = (1, 2, 3)
# Some 25 s from the boot of a cluster of Kafka 3.9: topics are made, producers and consumers start, groups form.
LINES = 1_400


@dataclass(frozen=True)
class Piece:
    """The beginning of a recording: its logs, and the options that name the files beside them."""

    logs: list[Path]
    beside: list[str]


@dataclass(frozen=True)
class Replayed:
    """`out` has all tables; what the jobs said."""

    out: Path
    imported: str
    compared: str


@pytest.fixture(scope="session")
def piece(tmp_path_factory: pytest.TempPathFactory) -> Piece:
    """The first lines of each broker's log, of one broker unpacked."""
    folder = tmp_path_factory.mktemp("piece")
    logs = []
    for broker in BROKERS:
        text = "".join(islice(recorded.lines(_recording(f"request-{broker}.log")), LINES)).encode()
        log = folder / (f"request-{broker}.log" if broker == 1 else f"request-{broker}.log.gz")
        log.write_bytes(text if broker == 1 else gzip.compress(text))
        logs.append(log)
    files = {"topics": "topics.json", "batches": "batches.csv", "isr": "cluster-metadata.txt"}
    return Piece(logs, [word for option, name in files.items() for word in (f"--{option}", str(_recording(name)))])


def _recording(name: str) -> Path:
    return recorded.file("traces", "W3-groups-k39", name)


def what_brokers_said() -> list[str]:
    """Their counters and their own logs, as options of a comparison."""
    logs = (_recording(f"server-{broker}.log") for broker in BROKERS)
    said = [word for log in logs for word in ("--server-log", str(log))]
    return ["--jmx-after", str(_recording("jmx-after.json")), *said]


@pytest.fixture(scope="session")
def replayed(spark: SparkSession, piece: Piece, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    import contextlib
    import io

    from jobs import fidelity, ingest, replay

    out = tmp_path_factory.mktemp("replayed")
    said = []
    for job, arguments in (
        (ingest, ["--from", "request-log", str(piece.logs[0].parent), *piece.beside]),
        (replay, ["--events", f"{out}/events", "--no-drain"]),
        (fidelity, what_brokers_said()),
    ):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert job.main.status([*arguments, "--out", str(out)]) == 0
        said.append(printed.getvalue())
    return Replayed(out, said[0], said[2])
