"""Kafka's own request log, turned into events of the contract. Only `spark_import` needs Spark."""
