"""The model of a producer: records arrive, linger, and are sent in batches per broker, with limited requests in flight.

A broker handles the requests of a connection one at a time. Waiting requests count as in flight. So slow
acknowledgements let records accumulate, which makes the next requests larger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from purgatory_udf.prediction.model_broker import (
    PRODUCE,
    AnsweredRequest,
    ModelBroker,
    ModelPartition,
    Sampler,
    SamplerBySize,
)
from purgatory_udf.prediction.simulation_plan import ProducerPlan

# Bytes of a batch without records (Kafka: DefaultRecordBatch.RECORD_BATCH_OVERHEAD).
BATCH_OVERHEAD = 61
# Time from a batch that is ready until its broker starts to handle it: wake-up of the sender and a local network. No
# log contains it.
SENDING_MS = 0.5
ALL = -1


class ModelBatch:
    """A batch of one partition that is being filled with records: its size in bytes, and when it was created."""

    __slots__ = ("bytes", "created_ms")

    def __init__(self, created_ms: float) -> None:
        self.created_ms = created_ms
        self.bytes = BATCH_OVERHEAD


class ModelProducer:
    """A producer of the model: adds the records of its plan to batches, and repeats them when all have arrived."""

    def __init__(
        self,
        plan: ProducerPlan,
        brokers: Mapping[int, ModelBroker],
        parts: Sequence[ModelPartition],
        handling: SamplerBySize,
        answer: Sampler,
    ) -> None:
        self.plan = plan
        self._host = next(iter(brokers.values())).host
        self._parts = parts
        self._connections = {
            number: ModelConnection(self, broker, handling, answer) for number, broker in sorted(brokers.items())
        }
        self._next = plan.begin_at
        self._due_ms = plan.begin_ms

    def start(self) -> None:
        if len(self.plan.gaps_ms):
            self._host.schedule(self._due_ms, self._arrive, None)

    def _arrive(self, _: None) -> None:
        plan, place = self.plan, self._next
        part = self._parts[plan.keys[place]]
        self._connections[part.leader].add(part, plan.record_bytes[place])
        self._next = (place + 1) % len(plan.gaps_ms)
        self._due_ms += plan.gaps_ms[self._next] / plan.speed
        self._host.schedule(self._due_ms, self._arrive, None)


class ModelConnection:
    """A producer's connection to one broker: the batches to send and the requests in flight."""

    def __init__(self, producer: ModelProducer, broker: ModelBroker, handling: SamplerBySize, answer: Sampler) -> None:
        self.producer = producer
        self.broker = broker
        self._handling = handling
        self._answer = answer
        self._queues: dict[ModelPartition, deque[ModelBatch]] = {}
        self._inbox: deque[ModelProduce] = deque()
        self._in_flight = 0
        self._busy = False
        self._waking = False

    def add(self, part: ModelPartition, size: int) -> None:
        plan, host = self.producer.plan, self.broker.host
        queue = self._queues.get(part)
        if queue is None:
            queue = self._queues[part] = deque()
        if not queue or queue[-1].bytes + size > plan.batch_bytes:
            queue.append(ModelBatch(host.now))
            host.schedule(host.now + plan.linger_ms, self._wake_if_ready, None)
        queue[-1].bytes += size
        if len(queue) > 1 or queue[-1].bytes >= plan.batch_bytes:
            self._wake_if_ready(None)

    def _wake_if_ready(self, _: None) -> None:
        """Wake the sender up if a batch for the broker is ready."""
        if not self._waking and self._may_send():
            self._waking = True
            self.broker.host.schedule(self.broker.host.now + SENDING_MS, self._send, None)

    def _send(self, _: None) -> None:
        """Send the first batch of each partition that the broker leads, even if it is not full, like Kafka's sender."""
        self._waking = False
        while self._may_send():
            filled = [(part, queue.popleft()) for part, queue in self._queues.items() if queue]
            self._in_flight += 1
            self._arrived(ModelProduce(self, filled))

    def _may_send(self) -> bool:
        return self._in_flight < self.producer.plan.max_in_flight and self._ready()

    def _ready(self) -> bool:
        plan, now = self.producer.plan, self.broker.host.now
        return any(
            len(queue) > 1 or queue[0].bytes >= plan.batch_bytes or queue[0].created_ms + plan.linger_ms <= now
            for queue in self._queues.values()
            if queue
        )

    def _arrived(self, request: ModelProduce) -> None:
        self._inbox.append(request)
        if not self._busy:
            self._serve()

    def _serve(self) -> None:
        self._busy = True
        request = self._inbox.popleft()
        self.broker.host.work(self._handling(request.bytes), self._try, request)

    def _try(self, request: ModelProduce) -> None:
        broker, plan = self.broker, self.producer.plan
        request.tried_ms = broker.host.now
        if broker.measurements.events is not None:
            self._trace(request)
        broker.append(request.batches)
        request.required = [part.end for part, _ in request.batches]
        if plan.acks == ALL:
            parts = [part for part, _ in request.batches]
            broker.produces.try_complete_else_watch(request, parts, broker.deadline_ms(plan.timeout_ms))
        else:
            self.answered(request, timed_out=False)

    def answered(self, request: ModelProduce, timed_out: bool) -> None:
        host, plan = self.broker.host, self.producer.plan
        now = host.now
        if now > 0:
            waited = now - request.tried_ms
            answer = AnsweredRequest(
                plan.client, PRODUCE, self.broker.number, now, waited, timed_out, request.bytes, False
            )
            self.broker.measurements.answered.append(answer)
        host.work(self._answer(), self._received, request)

    def _received(self, request: ModelProduce) -> None:
        now = self.broker.host.now
        if now > 0:
            acknowledged = self.broker.measurements.produce_latency_ms
            acknowledged += [(self.producer.plan.client, now - created_ms) for created_ms in request.created_ms]
        self._in_flight -= 1
        self._busy = False
        if self._inbox:
            self._serve()
        self._wake_if_ready(None)

    def _trace(self, request: ModelProduce) -> None:
        plan = self.producer.plan
        self.broker.measurements.event(
            *(request.tried_ms, "produce", self.broker.number),
            client_id=plan.client,
            request_id=plan.client,
            acks=plan.acks,
            timeout_ms=plan.timeout_ms,
            partitions=[
                {
                    "topic": part.topic,
                    "partition": part.partition,
                    "base_offset": part.end,
                    "last_offset": part.end,
                    "bytes": size,
                    "error": "NONE",
                }
                for part, size in request.batches
            ],
        )


class ModelProduce:
    """A produce request; it completes when the high watermark of each partition reaches the end of its append."""

    __slots__ = ("_connection", "batches", "bytes", "created_ms", "done", "required", "tried_ms")

    def __init__(self, connection: ModelConnection, filled: list[tuple[ModelPartition, ModelBatch]]) -> None:
        self._connection = connection
        self.batches = [(part, batch.bytes) for part, batch in filled]
        self.created_ms = [batch.created_ms for _, batch in filled]
        self.bytes = sum(size for _, size in self.batches)
        self.done = False
        self.required: list[int] = []
        self.tried_ms = 0.0

    def holds(self) -> bool:
        return all(
            part.high_watermark >= required for (part, _), required in zip(self.batches, self.required, strict=True)
        )

    def end(self, expired: bool) -> None:
        self._connection.answered(self, expired)
