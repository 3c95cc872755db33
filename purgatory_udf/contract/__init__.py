"""The event contract and the table schemas. Nothing here imports Spark.

- `event_types`: every event type and its fields; `value_checks`: what one field value may be
- `event_reader`: a line or a row becomes an event, or a `Rejection` with the reason
- `json_schema`: the event contract as a JSON Schema (`docs/events.schema.json`)
- `tables`, `metrics_tables`: the columns of every table, as Arrow schemas
- `outcome`, `topic_partition`: how one operation ended, and the key of a partition
- `overrides`: what-if settings and the requests they apply to
"""

from purgatory_udf.contract.event_reader import as_text, read_line, read_row
from purgatory_udf.contract.value_checks import Rejection

__all__ = ["Rejection", "as_text", "read_line", "read_row"]
