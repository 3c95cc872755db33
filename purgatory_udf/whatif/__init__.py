"""One trace under several configurations: which operations would have ended otherwise, and how."""

BASELINE = "baseline"

HELD_FIXED = (
    "Held fixed: every arrival, append and replication, as recorded. Clients do not react: one that would have "
    "retried, given up or sent less does not. (In a simulated cluster they do: simulate.)"
)
