"""The open loop: traces of any size, made by Spark in parallel. Nobody reacts to anything.

Time is cut into slices, and a slice of the trace can be made by itself, out of the seed and its number: `workload` says
what is asked for, `arrivals` how many requests come in which slice and before it, `requests` when and what they are,
`rows` makes events of them, `write` a table.
"""
