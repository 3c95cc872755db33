"""Lines of request logs, decoded into typed requests that are the same for all Kafka versions.

- `log_files`: finds and opens log files, and reads timestamps
- `logged_request`: a request with its times, body and response
- `log_line`: parses any line; `fast_parser`: parses lines in Kafka's own layout with compiled decoders
- `request_bodies`: decodes the bodies of fetches and produces
- `error_codes`: Kafka's error codes
"""
