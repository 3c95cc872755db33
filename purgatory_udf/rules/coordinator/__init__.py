"""Kafka's classic group coordinator. The reference, `rules.groups` and the simulation all use this one.

- `group_coordinator`: requests by group state, and the coordinators of all brokers on one clock
- `group_metadata`: a group, its members and its states; `group_requests`: the requests of members
- `join_requests`, `rebalance`, `member_sessions`: joining, rebalancing, session expiry
- `group_loading`: loading a group at a new coordinator
- `group_operations`: the delayed operations join, initial join and sync
- `coordinator_journal`: answers, lost members and state transitions, in order
"""
