"""How many examples a property is tried on: few enough for a suite that is run all the time, and `PURGATORY_EXAMPLES`
times as many for a night."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

FACTOR = int(os.environ.get("PURGATORY_EXAMPLES", "1"))


def examples(number: int) -> settings:
    """A busy machine is not a failure, nor is a trace that takes long to make. What fails is made small, no more."""
    phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    return settings(max_examples=number * FACTOR, deadline=None, suppress_health_check=list(HealthCheck), phases=phases)
