"""Kafka's classic group coordinator. The reference, `rules.groups` and the simulation share it.

In reading order:

- `group_coordinator`: requests by group state, and the coordinators of a cluster
- `group_metadata`, `group_requests`: a group with its members and states, and the requests of members
- `join_requests`, `rebalance`, `member_sessions`: joining, rebalancing, session expiration
- `group_loading`: a group that moves to another coordinator
- `group_operations`: the delayed operations join, initial join and sync
- `coordinator_journal`: answers, removed members and state transitions, in order
"""
