"""A model of a recorded cluster, fitted to its recording, and its predictions under other settings.

- `recording`: the tables as frames, and the stretch of time that is fitted
- the fit: `service_times`, `arrival_model`, `fit`; the result is a scenario
- the simulation of a fitted scenario, without Spark or SimPy: `play_plan`, `plan_builder`, `model_machine`,
  `model_broker`, `model_reader`, `model_producer`, `play`
- the answers: `fit_check`, `variant_settings`, `prediction_runs`, `tuning`, `prediction_pages`, `prediction_commands`
"""
