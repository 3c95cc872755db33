"""Kafka's classic group coordinator, the only one there is here: the reference replays traces with it, `groups` takes
it up on Spark for what is more than signs of life, and simulated brokers answer with it.

Read it in this order:

- the table of requests by state, and what each does: `coordinator`; its parts: `joins`, `rounds`, `sessions`, `moves`
- what it keeps: `group`, `state`, `member`; what it is asked: `request`; what it says: `journal`
- who waits, a file each: `initial_join`, `join`, `sync`, `heartbeat`; what they share: `operation`; a session's own way
  into the timer: `session_timer`
- all brokers' coordinators on one clock: `coordinators`
"""
