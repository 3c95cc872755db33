"""Comparison of a replay with the brokers that were recorded, with a cause for each operation that ended differently.

- `fidelity_run`: the comparison from beginning to end, and its report
- `outcome_comparison`: the rows of the table `fidelity`, from the queries of `answers/sql/fidelity`
- `broker_readings`: JMX readings and server logs of the brokers
- `coordinator_comparison`: the events of groups in server logs, compared with the replay
"""
