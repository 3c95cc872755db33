"""Imports traces from files, request logs and Kafka topics into the tables `events` and `rejected_events`."""
