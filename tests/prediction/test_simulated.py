"""A cluster that another simulator made, fitted: nothing is shared there, and a replay's outcomes say what happened."""

from __future__ import annotations

import pytest

from purgatory_udf.prediction.fit import fit
from purgatory_udf.prediction.plan_builder import fitted_of
from purgatory_udf.prediction.prediction_commands import checked_by_play
from purgatory_udf.prediction.recording import recording
from tests.prediction.simulated import recorded, replayed

pytestmark = pytest.mark.long


def test_a_simulated_cluster_is_reproduced_and_shares_no_cores() -> None:
    scenario = fit(recording(replayed()["events"], recorded()))
    assert fitted_of(scenario).host.cores is None
    checked = checked_by_play(scenario, 1)
    assert set(checked.recorded) == {*(f"checkout-{n}" for n in (1, 2, 3, 4)), "till-1", "till-2", "follower"}
    assert (checked.judged, checked.reasons()) == (35, [])
