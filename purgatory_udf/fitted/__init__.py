"""A model of one's own cluster, fitted to a recording of it, and what it predicts under other settings.

- in: `recording` (the tables as frames; `tables` has Spark read them), `window` (the stretch that is fitted to)
- the fit: `sharing` (how many cores clients and brokers shared), `steps` (how much work each step was), `arrivals`
  (when records came); `fit` makes a scenario of it, `model` says what that holds, `scenario_file` writes it
- the play, without Spark or SimPy: `plan` (what is to be played; `plans` makes it of a scenario), `machine` (clock and
  cores), `partition`, `purgatory`, `broker`, `reader`, `producer`, `sampler`, `diary`; `play` puts them together
- the answer: `figures` (of clients), `side_effects` (on the others), `seeds` (many plays at once), `check` (does the
  unchanged scenario do what was recorded?), `settings` (the keys of a variant), `prediction`, `tuning`, `pages`
"""
