"""The engine against Kafka's own classes, on the same traces.

- `trace_generator`: the traces; `trace`: parsing a trace for the engine
- `java`: Kafka's side, in a JVM (sources in `src`)
"""
