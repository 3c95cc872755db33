"""What-if: one trace under several configurations, and the operations with different outcomes."""

BASELINE = "baseline"

HELD_FIXED = (
    "Fixed: every arrival, append and replication, as recorded. Clients and followers do not react to changed "
    "responses. So an outcome is certain only if neither its client nor a follower of its broker was answered at "
    "another time before; the other outcomes assume arrivals that would have changed. Use --closed-loop SCENARIO "
    "for simulated clients, which react."
)
REACTING = (
    "Fixed: the scenario and its seed. Clients react to each response, so requests and their times differ between "
    "variants; the n-th request of a client is compared with its n-th request in the baseline."
)
