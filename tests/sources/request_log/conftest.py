"""The first lines of a real recording, imported, replayed and compared with the recorded outcomes, once per session."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.launch.backend_choice import open_local
from tests.support import recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory_udf.backend.backend import Session
    from purgatory_udf.launch.backend_choice import OpenBackend

BROKERS = (1, 2, 3)
# Lines per broker: the first 25 s of a Kafka 3.9 cluster, in which topics are created, clients start and groups form.
LINES = 1_400


@dataclass(frozen=True)
class Piece:
    """Logs with the first lines of a recording, and the import options for its other files."""

    logs: list[Path]
    options: list[str]


@dataclass(frozen=True)
class Replayed:
    """Output folder with all tables, and what the import and the comparison printed."""

    out: Path
    imported: str
    compared: str


@pytest.fixture(scope="session")
def piece(tmp_path_factory: pytest.TempPathFactory) -> Piece:
    """The first lines of each broker's log; one log is plain text, the others are compressed."""
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
    return recorded.data_file("traces", "W3-groups-k39", name)


def broker_options() -> list[str]:
    """Return the options of `fidelity` for the brokers' counters and server logs."""
    logs = (_recording(f"server-{broker}.log") for broker in BROKERS)
    server_logs = [word for log in logs for word in ("--server-log", str(log))]
    return ["--jmx-after", str(_recording("jmx-after.json")), *server_logs]


@pytest.fixture(scope="session")
def replayed(
    request: pytest.FixtureRequest, session: Session, piece: Piece, tmp_path_factory: pytest.TempPathFactory
) -> Replayed:
    """The outputs of the three jobs with the backend `session`."""
    if isinstance(session, LocalBackend):
        return _replayed(piece, tmp_path_factory.mktemp("replayed"), open_local)
    with_spark: Replayed = request.getfixturevalue("replayed_on_spark")
    return with_spark


@pytest.fixture(scope="session")
def replayed_on_spark(spark: SparkSession, piece: Piece, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    return _replayed(piece, tmp_path_factory.mktemp("replayed"), None)


def _replayed(piece: Piece, out: Path, open_backend: OpenBackend | None) -> Replayed:
    import contextlib
    import io

    from jobs import fidelity, ingest, replay

    outputs = []
    for job, arguments in (
        (ingest, ["--from", "request-log", str(piece.logs[0].parent), *piece.options]),
        (replay, ["--events", f"{out}/events", "--no-drain"]),
        (fidelity, broker_options()),
    ):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert job.main.status([*arguments, "--out", str(out)], open_backend) == 0
        outputs.append(printed.getvalue())
    return Replayed(out, outputs[0], outputs[2])
