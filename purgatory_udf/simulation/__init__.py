"""A simulated cluster whose clients react: traces with a known truth.

The brokers are those of `rules.reference`, so the simulation's outcomes are the truth about the trace. Everything
around them is a SimPy process.

- settings: `scenario`, `scenario_file`, `fitted_scenario`
- environment: `environment` (clock, random numbers, trace), `messages`, `client_network`
- brokers: `broker_server`, `quotas`, `coordinators`, `cluster_partitions`, `controller`, `replica_fetcher`
- clients: `producer`; `consumer` with `consumer_fetcher` and `consumer_membership`
- faults: `incidents`; the whole: `closed_loop`; results: `output`; the command: `simulation_run`
- traces of any size, without reacting clients: `open_loop`
"""
