"""A simulated cluster whose clients answer back: traces for those who have none at hand.

The brokers are the reference's own (`purgatory_udf/reference`), so what they did is the truth about the trace that they
leave. Everything around them is a SimPy process. Read it in this order:

- what is asked for: `scenario`, `load`, `fitted` (of a scenario that was fitted to a recording); chance: `chance`
- the world: `engine` (the reference, made to answer), `world` (one clock, one trace), `messages`, `network`
- brokers: `server`, and what it knows of: `fetch_session`, `quota`, `replication_quota`, `groups`; who leads what and
  who is in sync: `partitions`, `controller`; who copies: `follower`
- clients: `client`; `producer` with its `accumulator`; `consumer` (the poll model) with its `subscription`, `fetcher`,
  `membership` and `commits`, and `instance`, its lives; `admin`
- what goes wrong: `incidents`
- the whole: `closed_loop`; what comes out: `truth`, `output`, `jsonl`, `report`; whether it is so: `check`; and all of
  it as a command: `run`
- traces of any size, without clients that answer back: `open_loop`
"""
