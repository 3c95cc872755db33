"""One trace under several configurations: which operations would have ended otherwise, and how."""

BASELINE = "baseline"

HELD_FIXED = (
    "Held fixed: every arrival, append and replication, as recorded. Clients do not react: one that would have "
    "retried, given up or sent less does not. (In a simulated cluster they do: --closed-loop SCENARIO.)"
)
REACTING = (
    "Held fixed: the scenario and its seed, nothing else. Clients react to each answer, so what they send, and when, "
    "differs from variant to variant; a client's n-th request stands beside its n-th of the baseline."
)
