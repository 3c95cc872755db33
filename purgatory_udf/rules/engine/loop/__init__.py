"""The engine's rules and their state: one compiled loop over events in time order.

Modules named `compiled_…` have the rules of a module of `rules.reference` or `rules.purgatory`, which is the
specification: `compiled_fetch` those of `delayed_fetch`, `compiled_timing_wheel` those of `timing_wheel`.

In reading order:

- `codes`, `arena`: numeric codes, and the tables of records that everything is stored in
- `event_loop`, `change_events`: the loop with the handlers of requests, and those of changes
- `compiled_fetch`, `fetch_reads`, `fetch_index`: when a fetch completes, its response, which fetches an event checks
- `compiled_remote`: fetches and list-offsets that wait for remote storage
- `compiled_produce`: produce, delete-records and create-topics, which are settled part by part
- `waiter_queues`: the queues of a key's waiting parts
- `engine_purgatory`, `compiled_timing_wheel`, `clock_advance`: watcher lists and gauges, timing wheels, the reaper
- `replica_state`: a replica's log, watermarks, leader and followers
- `engine_call`, `engine_state`, `state_layout`, `state_codec`: a call's input, the state between calls, how the state
  is laid out in a call's tables, and how both are serialized
"""
