"""A fit to a cluster of the closed-loop simulation, in which no cores are shared."""

from __future__ import annotations

import pytest

from purgatory_udf.prediction.fit import fit
from purgatory_udf.prediction.prediction_commands import check_by_simulation
from purgatory_udf.prediction.recording import build_recording
from purgatory_udf.prediction.simulation_plan import require_fitted
from tests.prediction.simulated import recorded, replayed

pytestmark = pytest.mark.long


def test_simulated_cluster_is_reproduced() -> None:
    scenario = fit(build_recording(replayed()["events"], recorded()))
    assert require_fitted(scenario).host.cores is None
    checked = check_by_simulation(scenario, 1)
    assert set(checked.recorded) == {*(f"checkout-{n}" for n in (1, 2, 3, 4)), "till-1", "till-2", "follower"}
    assert (checked.compared, checked.reasons()) == (35, [])
