"""One trace under several configurations: which operations would have ended otherwise, and how."""

BASELINE = "baseline"

HELD_FIXED = (
    "Held fixed: every arrival, append and replication, as recorded. Clients do not react: one that would have "
    "retried, given up or sent less does not, and a follower's later fetch would have come later. So an end is sure "
    "until its client, or a follower of its broker, was answered at another time; the rest supposes arrivals that "
    "would have been others. (In a simulated cluster they are: --closed-loop SCENARIO.)"
)
REACTING = (
    "Held fixed: the scenario and its seed, nothing else. Clients react to each answer, so what they send, and when, "
    "differs from variant to variant; a client's n-th request stands beside its n-th of the baseline."
)
