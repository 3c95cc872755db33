"""Comparison of a replay with the brokers that were recorded, with a cause for each operation that ended differently.

Read `fidelity_run` first, then `outcome_comparison` and the queries of `answers/sql/fidelity`;
`broker_readings` and `coordinator_comparison` are the parts that need Python.
"""
