"""Client quotas: whoever produces or fetches more bytes per second than allowed gets the answer later."""

from __future__ import annotations

from collections import deque

# quota.window.num and quota.window.size.seconds
SAMPLES = 11
SAMPLE_MS = 1000


class ClientQuota:
    """A client's byte rate over a sliding window, and how long its answer has to wait for the rate to come down."""

    def __init__(self, bytes_per_second: float) -> None:
        self._allowed = bytes_per_second
        self._samples: deque[tuple[int, int]] = deque()

    def throttle_ms(self, size: int, now_ms: int) -> int:
        """Record these bytes. Over a window of W with a rate of R, where Q is allowed: (R - Q) / Q * W."""
        begins_ms = now_ms // SAMPLE_MS * SAMPLE_MS
        if self._samples and self._samples[-1][0] == begins_ms:
            size += self._samples.pop()[1]
        self._samples.append((begins_ms, size))
        while self._samples[0][0] <= begins_ms - SAMPLES * SAMPLE_MS:
            self._samples.popleft()
        # As Kafka does: the window counts as full but for one sample, else a first request would look like a flood.
        window_ms = max(now_ms - self._samples[0][0], (SAMPLES - 1) * SAMPLE_MS)
        rate = sum(size for _, size in self._samples) * 1000 / window_ms
        return round((rate - self._allowed) / self._allowed * window_ms) if rate > self._allowed else 0
