"""The event contract and the table schemas. No module imports Spark.

- `value_types`: types of single values, such as integers in a range, and `Rejection`
- `event_checks`: every event type with its fields, their checks and defaults
- `event_reader`: reads an event from a line or a row, or raises a `Rejection`
- `tables`, `metrics_tables`: the columns of every table, as Arrow schemas with comments
- `outcome`: the result of one operation, and the key of a partition
- `overrides`: what-if settings and the requests that they apply to
"""

from purgatory_udf.contract.event_reader import as_text, read_line, read_row
from purgatory_udf.contract.value_types import Rejection

__all__ = ["Rejection", "as_text", "read_line", "read_row"]
