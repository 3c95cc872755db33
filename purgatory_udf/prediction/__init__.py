"""A model of a recorded cluster, fitted to its recording, and predictions of it under other settings.

- `recording`: the tables as data frames, and the period of the recording that is fitted
- fitting: `fitted_models`, `fit`; the result is a scenario with a section `fitted`
- the model, without Spark and SimPy: `simulation_plan`, `model_broker`, `model_producer`, `model_simulation`
- results: `fit_check`, `variant_settings`, `prediction_runs`, `tuning`, `prediction_commands`
"""
