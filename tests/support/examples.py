"""Number of examples of property tests.

The examples are the same in every run, so that a change fails or passes for its own reasons. The environment variable
`PURGATORY_EXAMPLES` multiplies their number and makes them random.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

_REQUESTED = os.environ.get("PURGATORY_EXAMPLES")
FACTOR = int(_REQUESTED or "1")


def examples(number: int) -> settings:
    """Return settings without deadlines and health checks, as traces take long to generate on a busy machine."""
    phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    return settings(
        max_examples=number * FACTOR,
        derandomize=_REQUESTED is None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=phases,
    )
