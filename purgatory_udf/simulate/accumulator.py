"""What a producer has not sent yet: records gathered into batches, by partition (Kafka: RecordAccumulator)."""

from __future__ import annotations

from collections import deque

from purgatory_udf.reference.topic_partition import TopicPartition
from purgatory_udf.simulate.messages import Batch


class Accumulator:
    """A batch is ready when it is full, when its first record has lingered, or when it has backed off after failing."""

    def __init__(self, batch_bytes: int, linger_us: int, buffer_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._linger_us = linger_us
        self._buffer_bytes = buffer_bytes
        self._queues: dict[TopicPartition, deque[Batch]] = {}
        self.bytes = 0
        # Nothing lingers: somebody waits until all is delivered.
        self.flushing = False

    @property
    def is_full(self) -> bool:
        return self.bytes >= self._buffer_bytes

    def append(self, key: TopicPartition, size: int, now_us: int) -> bool:
        """Add a record; whether that is a reason to look for ready batches."""
        queue = self._queues.setdefault(key, deque())
        last = queue[-1] if queue else None
        begins = last is None or last.attempts > 0 or last.bytes + size > self._batch_bytes
        if last is None or begins:
            last = Batch(key, now_us)
            queue.append(last)
        last.records += 1
        last.bytes += size
        self.bytes += size
        return begins or last.bytes >= self._batch_bytes

    def ready(self, now_us: int) -> list[TopicPartition]:
        """The partitions whose first batch may go."""
        return [key for key, queue in self._queues.items() if queue and self._ready_us(queue) <= now_us]

    def next_ready_us(self, now_us: int) -> int | None:
        """When the next batch will be ready that is not."""
        times = (self._ready_us(queue) for queue in self._queues.values() if queue)
        return min((time_us for time_us in times if time_us > now_us), default=None)

    def take(self, key: TopicPartition) -> Batch:
        return self._queues[key].popleft()

    def put_back(self, batch: Batch) -> None:
        """To be sent again, before all that came after it."""
        self._queues[batch.key].appendleft(batch)

    def done(self, batch: Batch) -> None:
        """Delivered or given up: its memory is free."""
        self.bytes -= batch.bytes

    def _ready_us(self, queue: deque[Batch]) -> int:
        first = queue[0]
        if first.attempts:
            return first.not_before_us
        if self.flushing or len(queue) > 1 or first.bytes >= self._batch_bytes:
            return first.created_us
        return first.created_us + self._linger_us
