"""Kafka's group coordinators, old and new. The reference, `rules.groups` and the simulation share them.

In reading order:

- `group_coordinator`: requests by group state, and the coordinators of a cluster
- `group_metadata`, `group_requests`: a classic group with its members and states, and the requests of members
- `join_requests`, `rebalance`, `classic_sessions`: joining and moving to another coordinator, rebalancing, expiration
  of the sessions of classic members
- `group_operations`: the delayed operations join, initial join and sync
- `coordinator_timer`: the one timer of the new coordinator, and timers of members of consumer groups
- `coordinator_journal`: answers, removed members, and transitions of groups and members, in order

Consumer groups (KIP-848), in which the new coordinator assigns the partitions:

- `consumer_group`: a group with its members, epochs, target assignment and state, also as JSON; the reconciliation of
  a member's assignment with its target
- `consumer_group_coordinator`: heartbeats, leaves and fencing
- `assignors`, `java_hash_order`: the server-side assignors, and the order of Java's hash tables that they depend on
- `online_migration`: conversion of classic groups to consumer groups and back; classic members of consumer groups
"""
