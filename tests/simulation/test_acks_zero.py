"""A failed produce with acks=0 closes its connection, so that the client refreshes its metadata."""

from __future__ import annotations

from purgatory_udf.simulation.closed_loop import ClosedLoop
from purgatory_udf.simulation.scenario import Scenario


def test_acks_zero_refreshes_metadata_after_error() -> None:
    """After a leader move only the requests in flight fail.

    `KafkaApis.handleProduceRequest`: with acks=0 an error closes the connection "to notify the client".
    """
    scenario = Scenario.model_validate(
        {
            "shows": "A leader moves while a producer sends with acks=0.",
            "duration_s": 20,
            "topics": [{"name": "orders", "partitions": 1}],
            "producers": [{"name": "writer", "topics": ["orders"], "rate": 20, "acks": 0}],
            "consumers": [],
            "incidents": [{"what": "move-leader", "topic": "orders", "partition": 0, "to": 2, "at_s": 8}],
        }
    )
    events = ClosedLoop(scenario).run().events
    produces = [(event["broker"], event["partitions"][0]["error"]) for event in events if event["type"] == "produce"]
    failed = [broker for broker, error in produces if error == "NOT_LEADER_OR_FOLLOWER"]
    assert 1 <= len(failed) <= 5 and set(failed) == {1}
    last = len(produces) - 1 - [error for _, error in reversed(produces)].index("NOT_LEADER_OR_FOLLOWER")
    assert len(produces) - last > 100 and set(produces[last + 1 :]) == {(2, "NONE")}
