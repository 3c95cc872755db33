"""A simulated cluster whose clients answer back: traces for those who have none at hand.

The brokers are the reference's own (`purgatory_udf/reference`), so what they did is the truth about the trace that they
leave. Everything around them is a SimPy process. Read it in this order:

- what is asked for: `scenario`, `load`; chance: `chance`
- the world: `world` (one clock, one trace), `network`, `messages`
- servers: `server`, and what it knows of: `partitions`, `fetch_session`, `quota`, `groups`; who leads: `controller`;
  who copies: `follower`
- clients: `client`; `producer` with its `accumulator`; `consumer` (the poll model) with its `fetcher`, `membership` and
  `commits`; `admin`
- what goes wrong: `incidents`
- the whole: `closed_loop`; what comes out: `truth`, `tables`, `check`, `report`
- traces of any size, without clients that answer back: `open_loop`
"""
