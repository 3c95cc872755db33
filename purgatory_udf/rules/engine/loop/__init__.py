"""The engine's rules: one compiled loop over events in order of time.

- `event_loop`: the loop and the requests; `change_events`: appends, high watermarks, leadership, broker stops
- `fetch_rules`, `fetch_answers`, `fetch_index`: when a fetch completes, what it answers, which fetches an event can
  complete
- `produce_rules`: operations whose partitions are settled one by one (produce, delete-records, create-topics)
- `waiter_queues`, `waiter_checks`, `engine_purgatory`, `expiry_timer`, `clock_advance`: waiting, waking, expiring
- `replica_state`, `replica_log`: a replica's watermarks and log
- `arena`, `codes`: the records everything lives in, and the numbers that stand for words
- `engine_call`, `engine_state`, `call_cleanup`, `state_codec`: one call's input, the state between calls, its bytes
"""
