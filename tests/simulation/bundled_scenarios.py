"""The bundled scenarios, scaled down; each is simulated once per test process."""

from __future__ import annotations

from functools import cache

from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.simulation.closed_loop import ClosedLoop, SimulationResult
from purgatory_udf.simulation.scenario import Scenario, load_scenario

# Per scenario: factor of clients, factor of the producers' rate, duration in seconds.
SMALL = {
    "steady": (0.3, 0.3, 12),
    "idle-consumers": (0.5, 1.0, 12),
    "slow-follower": (0.25, 0.3, 25),
    "rolling-restart": (1.0, 0.05, 60),
    "rebalance-storm": (1.0, 0.03, 60),
    "hot-partition": (0.25, 0.2, 12),
    "leader-failover": (0.34, 0.3, 35),
    "create-topics": (1.0, 0.3, 30),
    "purgatory-leak": (1.0, 1.0, 10),
    "open-transactions": (1.0, 1.0, 12),
    "cold-consumers": (1.0, 0.5, 16),
    "throttled-replica": (1.0, 1.0, 16),
    "large-batches": (1.0, 0.5, 12),
    "slow-remote-reads": (0.5, 1.0, 16),
    "share-workers": (1.0, 1.0, 16),
}


def small_scenario(name: str) -> Scenario:
    clients, load_share, seconds = SMALL[name]
    scenario = load_scenario(name).scaled(clients)
    producers = [producer.model_copy(update={"rate": producer.rate * load_share}) for producer in scenario.producers]
    return scenario.model_copy(update={"producers": producers, "duration_s": seconds})


@cache
def simulated_scenario(name: str) -> SimulationResult:
    return ClosedLoop(small_scenario(name)).run()


def outcomes_of_kind(simulated: SimulationResult, kind: str) -> list[Outcome]:
    return [outcome for outcome in simulated.truth.outcomes if outcome.kind == kind]


def seconds_since_start(simulated: SimulationResult, us: int) -> float:
    """Return the seconds from the first event to `us`."""
    return (us - simulated.events[0]["time_us"]) / 1e6
