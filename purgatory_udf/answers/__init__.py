"""Answers from the tables of a replay: metrics, audit, explain, report, fidelity, what-if."""
