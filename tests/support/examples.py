"""Number of examples of property tests; the environment variable `PURGATORY_EXAMPLES` multiplies it."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

FACTOR = int(os.environ.get("PURGATORY_EXAMPLES", "1"))


def examples(number: int) -> settings:
    """Return settings without deadlines and health checks, as traces take long to generate on a busy machine."""
    phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    return settings(max_examples=number * FACTOR, deadline=None, suppress_health_check=list(HealthCheck), phases=phases)
