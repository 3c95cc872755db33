"""From tables to answers: metrics, audit, explain, report, fidelity, what-if."""
