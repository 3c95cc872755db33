"""What-if with reacting clients: each variant is simulated, and requests of a client are matched by number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from purgatory_udf.answers.variants import Variant, VariantChanges, variants
from purgatory_udf.answers.what_if import REACTING, ScenarioOptions, WhatIf, simulate_variants, what_if_simulated
from purgatory_udf.common.configuration import load_config
from purgatory_udf.common.errors import UserError
from purgatory_udf.simulation.closed_loop import ClosedLoop
from purgatory_udf.simulation.scenario import Scenario
from tests.support.delta_lake import Lake

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Session

# Two consumers of a group wait for the records of one slow producer.
SCENARIO = Scenario.model_validate(
    {
        "shows": "Fetches that wait.",
        "duration_s": 12,
        "topics": [{"name": "orders", "partitions": 2, "replication": 1}],
        "producers": [{"name": "writer", "topics": ["orders"], "rate": 1}],
        "consumers": [{"name": "reader", "count": 2, "topics": ["orders"], "fetch_max_wait_ms": 300}],
    }
)
PATIENT = ["patient", "fetch.max_wait_ms=x3"]
UNCHANGED = ["unchanged", "fetch.max_wait_ms=x1"]
GROUPED = ["grouped", "grouping=shard"]


@pytest.fixture(scope="module")
def out(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simulated") / "out"


@pytest.fixture(scope="module")
def messages(session: Session) -> list[str]:
    """The progress messages of both runs of the fixture `comparison`."""
    return []


@pytest.fixture(scope="module")
def comparison(session: Session, out: Path, messages: list[str]) -> WhatIf:
    """The scenario under four configurations, compared twice."""
    chosen = variants([*PATIENT, *UNCHANGED, *GROUPED], None, [])
    folders = simulate_variants(session, ScenarioOptions(SCENARIO), str(out), chosen, messages.append)
    assert folders["grouped"] == folders["baseline"]
    messages.append("again")
    return what_if_simulated(session, ScenarioOptions(SCENARIO), str(out), chosen[:2], None, messages.append)


def test_each_variant_is_simulated_once_and_kept(comparison: WhatIf, messages: list[str], out: Path) -> None:
    home = f"{out}/_what_if"
    assert comparison.folders == {
        "baseline": f"{home}/baseline",
        "patient": f"{home}/patient",
    }
    names = ("baseline", "patient", "unchanged")
    steps = [line for line in messages if line.startswith("variant ") or line == "again"]
    first = [f"variant {name}: {step}" for name in names for step in ("simulating", "replaying")]
    assert steps == [*first, "again", *(f"variant {name}: replaying" for name in names[:2])]


def test_equivalent_variant_has_no_difference(session: Session, comparison: WhatIf, out: Path) -> None:
    assert REACTING in comparison.lines()
    before, after = (f"{out}/_what_if/{name}" for name in ("baseline", "unchanged"))
    changes = Counter(row["change"] for row in VariantChanges(session, before, after, reacting=True).rows("changes"))
    assert changes == {"same": len(ClosedLoop(SCENARIO).run().truth.outcomes)}


def test_longer_waits_mean_fewer_requests(comparison: WhatIf) -> None:
    clients = comparison.together[0]
    sent: dict[Any, Any] = {(row[0], row[1]): row[2] for row in clients.rows}
    for name, settings in (("baseline", []), ("patient", PATIENT[1:])):
        simulated = ClosedLoop(SCENARIO, load_config(None, settings)).run()
        known = {each.operation_id for each in simulated.exchanges}
        types = Counter(event["type"] for event in simulated.events if event["seq"] in known)
        assert {kind: count for (kind, variant), count in sent.items() if variant == name} == types
    assert sent["fetch", "patient"] < 0.6 * sent["fetch", "baseline"]


def test_requests_are_matched_by_client_and_number(comparison: WhatIf, out: Path) -> None:
    def fetches(folder: str) -> dict[str, tuple[object, ...]]:
        lake = Lake(Path(folder))
        ends = [
            lake.rows(f"SELECT request_id, {expired}, wait_ms, completed_by, bytes FROM {table} WHERE kind = 'fetch'")
            for table, expired in (("completions", "false"), ("expirations", "true"))
        ]
        return {row[0]: row[1:] for rows in ends for row in rows}

    before, after = (fetches(comparison.folders[name]) for name in ("baseline", "patient"))
    differ = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    rows = Lake(out).rows("SELECT request_id FROM what_if WHERE variant = 'patient' AND kind = 'fetch'")
    assert len(rows) == len(differ) > 20
    assert {row[0] for row in rows} == differ


def test_more_reader_threads_expire_fewer_fetches() -> None:
    """A variant may change the scenario's brokers: the threads that read remote storage, and their pace."""
    values = {
        "shows": "Reads that queue for threads.",
        "duration_s": 9,
        "seed": 4,
        "brokers": {"count": 1, "remote_read": {"median_ms": 150, "p75_ms": 200}, "remote_reader_threads": 1},
        "topics": [
            {"name": "clicks", "partitions": 4, "replication": 1, "min_isr": 1, "segment_bytes": 16384,
             "local_retention_bytes": 16384}
        ],
        "producers": [{"name": "web", "topics": ["clicks"], "rate": 300, "record_bytes": 1000}],
        "consumers": [
            {"name": "old", "count": 3, "assign": {"clicks": [0, 1, 2, 3]}, "reset": "earliest", "start_after_s": 4,
             "commit": "never", "max_partition_fetch_bytes": 16384}
        ],
    }  # fmt: skip
    options = ScenarioOptions(Scenario.model_validate(values))
    few, many = variants(["many", "brokers.remote_reader_threads=12"], None, [])

    def expired(variant: Variant) -> float:
        run = options.run_of(variant)
        ends = ClosedLoop(run.scenario, run.config).run().truth.outcomes
        waited = [end.expired for end in ends if end.kind == "remote_fetch"]
        return sum(waited) / len(waited)

    assert options.run_of(few).run_id != options.run_of(many).run_id
    assert expired(few) > 0.9 and expired(many) < 0.1


def test_wrong_keys_of_brokers_are_reported() -> None:
    for setting, error in (
        ("brokers.remote_reader_threads=0", "brokers.remote_reader_threads: Input should be greater than"),
        ("brokers.readers=2", "brokers.readers: unknown key"),
        ("brokers.count={", "not YAML"),
    ):
        with pytest.raises(UserError, match=f"--variant v: {error}"):
            ScenarioOptions(SCENARIO).run_of(variants(["v", setting], None, [])[1])
