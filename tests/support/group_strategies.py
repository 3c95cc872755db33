"""Random traces of consumer groups as hypothesis strategies: short, with many ties and misbehaving clients.

Random requests would rarely get past UNKNOWN_MEMBER_ID. The requests therefore come from clients that receive the
reference's answers and usually act on them, but sometimes do something else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.coordinator.coordinator_journal import Answer
from purgatory_udf.rules.purgatory.clock import Pause, Pauses
from purgatory_udf.rules.reference.reference_replay import Replayer

Event = dict[str, Any]

START_US = 1_000_000
# The JoinGroup versions of a group's clients; the last two are static members.
VERSIONS = (3, 5, 0, 5, 9)
FIRST_STATIC_SLOT = 3

# Few and small values, so that deadlines coincide with each other and with requests; some are at wheel boundaries.
SESSIONS_MS = st.sampled_from((40, 40, 40, 20, 20, 21, 400, 400, 10, 5, 1, 0))
REBALANCES_MS = st.sampled_from((20, 20, 21, 40, 42, 10, 10, 400, 5, 3, 0))
PAUSES_US = st.sampled_from((0, 0, 0, 0, 1, 400, 999, 1000, 1000, 1000, 1000, 2000, 2000, 3000, 5000, 10_000, 39_999))
NEXT, ALL_CLIENTS = "next", "all clients"
# Events of the group itself.
MOVES = ("unload", "load", "stop")
ACTIONS = st.sampled_from(
    (
        *(NEXT,) * 10,
        *(ALL_CLIENTS,) * 6,
        "join",
        "join",
        "sync",
        "heartbeat",
        "commit",
        "commit",
        "leave",
        "clock",
        *MOVES,
    )
)
MISTAKES = st.sampled_from(
    (*(None,) * 24, "restarted", "restarted", "generation", "member", "instance", "protocols", "protocols", "session")
)
PROTOCOLS: tuple[list[str], ...] = (["range", "sticky"], ["sticky", "range"], ["range"], ["other"], [])
# Usually one group; sometimes another one, or one of the same name at another broker.
PLACES = st.sampled_from((*((0, "g"),) * 8, (0, "h"), (1, "g")))


# Times at which brokers stand still: broker, milliseconds from the end of its last one, and length in milliseconds.
STANDSTILLS = st.lists(st.tuples(st.sampled_from((0, 0, 1)), st.integers(0, 60), st.integers(1, 120)), max_size=3)


@dataclass(frozen=True, slots=True)
class Step:
    """After a pause, the client in a slot of a group acts, possibly with a mistake.

    With `ALL_CLIENTS`, every client that the group has seen performs its next action at the same time.
    """

    pause_us: int
    place: tuple[int, str]
    slot: int
    action: str
    mistake: str | None
    session_ms: int
    rebalance_ms: int
    named_leader: int | None


@dataclass(frozen=True, slots=True)
class GroupTraffic:
    config: Config
    events: list[Event]


STEPS = st.builds(
    Step,
    pause_us=PAUSES_US,
    place=PLACES,
    slot=st.integers(0, len(VERSIONS) - 1),
    action=ACTIONS,
    mistake=MISTAKES,
    session_ms=SESSIONS_MS,
    rebalance_ms=REBALANCES_MS,
    named_leader=st.sampled_from((None, None, *range(len(VERSIONS)))),
)


@st.composite
def group_configs(draw: st.DrawFn) -> Config:
    group = {
        "initial_rebalance_delay_ms": draw(st.sampled_from((0, 1, 3, 10))),
        "min_session_timeout_ms": draw(st.sampled_from((0, 0, 0, 2))),
        "max_session_timeout_ms": draw(st.sampled_from((1000, 1000, 1000, 40))),
        "new_member_timeout_ms": draw(st.sampled_from((300_000, 50, 5))),
        "max_size": draw(st.sampled_from((1000, 1000, 1000, 2))),
        "rebalance_timeout": draw(st.sampled_from(("rebalance", "rebalance", "session"))),
        "session_timeout_ms": draw(st.sampled_from((None, None, None, "x0.5", 10))),
        "rebalance_timeout_ms": draw(st.sampled_from((None, None, None, "x2", 10))),
        "purge_interval": draw(st.sampled_from((1000, 0, 2))),
    }
    return Config.model_validate({"group": group})


@st.composite
def group_traffic(draw: st.DrawFn, max_steps: int = 60) -> GroupTraffic:
    """Return groups of up to five clients each, two of them static members, and a configuration."""
    config = draw(group_configs())
    clients = _Clients(config, draw(STANDSTILLS))
    at_least = draw(st.sampled_from((1, max_steps // 4, max_steps // 2)))
    for step in draw(st.lists(STEPS, min_size=at_least, max_size=max_steps)):
        clients.take(step)
    clients.resume()
    return GroupTraffic(config, clients.events)


@dataclass(slots=True)
class _Client:
    """A client: its id and generation from the last answers, and its next action."""

    member_id: str = ""
    generation: int = 0
    incarnation: int = 0
    next: str = "join"

    def receive(self, answer: Answer) -> None:
        if answer.error in ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "ILLEGAL_GENERATION"):
            self.member_id, self.next = "", "join"
        elif answer.error != "NONE":
            self.member_id, self.next = answer.member_id, "join"
        elif answer.api == "join_group":
            self.member_id, self.generation, self.next = answer.member_id, answer.generation or 0, "sync"
        else:
            self.next = "heartbeat"


class _Clients:
    """The clients of all groups, and the events that they cause."""

    def __init__(self, config: Config, standstills: list[tuple[int, int, int]]) -> None:
        self.events: list[Event] = []
        self._now_us = START_US
        self._boundaries: list[Event] = []
        pauses, ends_ms = Pauses(), {0: START_US // 1000, 1: START_US // 1000}
        for broker, gap_ms, length_ms in standstills:
            paused_ms = ends_ms[broker] + gap_ms
            ends_ms[broker] = paused_ms + length_ms
            pauses.add(Pause(broker, paused_ms, ends_ms[broker]))
            for kind, at_ms in (("paused", paused_ms), ("resumed", ends_ms[broker])):
                self._boundaries.append({"time_us": at_ms * 1000, "broker": broker, "type": kind})
        self._boundaries.sort(key=lambda event: int(event["time_us"]))
        self._replayer = Replayer(config, START_US // 1000, pauses=pauses)
        self._clients: dict[tuple[tuple[int, str], int], _Client] = {}

    def take(self, step: Step) -> None:
        self._now_us += step.pause_us
        self._record_boundaries(self._now_us)
        # Answers may be due before the step.
        self._replayer.cluster.clock.advance_to(self._now_us // 1000)
        if step.action in MOVES:
            self._move(step)
            return
        client = self._clients.setdefault((step.place, step.slot), _Client())
        if step.action == NEXT:
            self._act(step, client.next, client)
        elif step.action != ALL_CLIENTS:
            self._act(step, step.action, client)
        else:
            for (place, slot), other in self._clients.items():
                if place == step.place and other.next != "clock":
                    self._act(replace(step, slot=slot), other.next, other)

    def resume(self) -> None:
        """Record the remaining times at which brokers stand still, after the last step."""
        self._record_boundaries(2**62)

    def _record_boundaries(self, until_us: int) -> None:
        while self._boundaries and self._boundaries[0]["time_us"] <= until_us:
            self.events.append({**self._boundaries.pop(0), "seq": 3 * len(self.events) + 1})

    def _act(self, step: Step, action: str, client: _Client) -> None:
        self._replayer.cluster.clock.advance_to(self._now_us // 1000)
        seq = 3 * len(self.events) + 1
        event: Event = {"time_us": self._now_us, "seq": seq, "type": "clock"}
        if action != "clock":
            # The client waits for the answer.
            client.next = "clock"
            event |= {"request_id": f"r{seq}", "client_id": f"c{step.slot}"} | self._request(step, action, client)
            self._replayer.coordinators.handle(event, client.receive)
        self.events.append(event)

    def _move(self, step: Step) -> None:
        """Unload, stop or load the group. It is loaded with the clients that have an id, except one with a mistake."""
        broker, group = step.place
        place: Event = {"broker": broker, "group": group}
        if step.action != "load":
            self._apply({"type": {"unload": "group_unloaded", "stop": "group_stopped"}[step.action], **place})
            return
        place |= {"type": "group_loaded", "generation": step.session_ms % 4}
        known = [
            (slot, client)
            for (where, slot), client in self._clients.items()
            if where == step.place and client.member_id
        ]
        left_out = None if step.mistake is None else step.slot
        loaded = [(slot, client) for slot, client in known if slot != left_out]
        if not loaded:
            self._apply({**place, "member_id": ""})
        for slot, client in loaded:
            member: Event = {"client_id": f"c{slot}", "member_id": client.member_id, "protocols": PROTOCOLS[0]}
            if slot >= FIRST_STATIC_SLOT:
                member["group_instance_id"] = f"i{slot}"
            if step.named_leader is not None:
                member["leader_member_id"] = loaded[step.named_leader % len(loaded)][1].member_id
            timeouts = {"session_timeout_ms": step.session_ms, "rebalance_timeout_ms": step.rebalance_ms}
            self._apply({**place, **member, **timeouts})
            client.generation, client.next = place["generation"], "heartbeat"

    def _apply(self, event: Event) -> None:
        self._replayer.cluster.clock.advance_to(self._now_us // 1000)
        event = {"time_us": self._now_us, "seq": 3 * len(self.events) + 1, **event}
        self._replayer.coordinators.handle(event)
        self.events.append(event)

    def _request(self, step: Step, action: str, client: _Client) -> Event:
        broker, group = step.place
        request: Event = {"broker": broker, "group": group, "member_id": client.member_id}
        if (step.slot >= FIRST_STATIC_SLOT) != (step.mistake == "instance"):
            request["group_instance_id"] = f"i{step.slot}"
        if step.mistake == "member":
            request["member_id"] = self._id_of(step, (step.slot + 1) % len(VERSIONS)) or "unknown"
        if action == "join":
            return request | self._join(step, client)
        return request | _later_request(action, client.generation + (step.mistake == "generation"))

    def _join(self, step: Step, client: _Client) -> Event:
        join: Event = {
            "type": "join_group",
            "api_version": VERSIONS[step.slot],
            "session_timeout_ms": 5000 if step.mistake == "session" else step.session_ms,
            "rebalance_timeout_ms": step.rebalance_ms,
            "protocols": PROTOCOLS[step.rebalance_ms % len(PROTOCOLS) if step.mistake == "protocols" else 0],
        }
        if step.mistake == "restarted" or not client.member_id:
            client.incarnation += 1
            join["member_id"] = ""
            # Sometimes the recorded id is missing, or has been assigned before.
            if step.session_ms != 5:
                join["assigned_member_id"] = f"m{step.slot}.{1 if step.session_ms == 21 else client.incarnation}"
        if step.named_leader is not None:
            join["leader_member_id"] = self._id_of(step, step.named_leader) or None
        return join

    def _id_of(self, step: Step, slot: int) -> str:
        return self._clients.get((step.place, slot), _Client()).member_id


def _later_request(action: str, generation: int) -> Event:
    requests: dict[str, Event] = {
        "sync": {"type": "sync_group", "leader": True},
        "heartbeat": {"type": "heartbeat"},
        "commit": {"type": "offset_commit", "partitions": [{"topic": "t", "partition": 0, "offset": 1}]},
        "leave": {"type": "leave_group"},
    }
    return requests[action] | {"generation": generation}
