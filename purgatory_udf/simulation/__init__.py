"""Simulated Kafka clusters: traces with known true outcomes.

A closed loop (`closed_loop`) runs producers, consumers, followers and a controller as SimPy processes around the
brokers of `rules.reference`. Clients react to responses, and the outcomes of the simulated brokers are the ground truth
for the recorded trace. An open loop (`open_loop`) generates traces of any size with Spark; its clients follow a fixed
schedule.

- settings: `scenario`, `scenario_sections`
- clock, random numbers and trace: `simpy_environment`
- network: `messages`, `client_network`
- brokers: `broker_server`, `quotas`, `coordinators`, `cluster_partitions`, `controller`
- clients: `producer`; `consumer` with `consumer_membership`; workers: `share_groups`; fetch loops, also of followers:
  `fetchers`
- the whole simulation, with its incidents: `closed_loop`; output tables: `output`; the command: `simulation_run`
"""
