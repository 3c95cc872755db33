"""Diagnosis of a replay: what each operation waited for (`blame`), and who was at fault (`findings`).

In reading order: `finding` (what a diagnosis reports), `trace_facts` (the figures of a trace that detectors read),
`follower_incidents`, `min_isr_incidents`, `cluster_incidents`, `client_incidents`, `group_incidents` (the detectors),
and `diagnosis_run`, which also compares two recordings.
"""
