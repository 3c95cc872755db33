"""The event contract: from a line of a trace to a typed event, or to the reason why it is not one. No Spark in here."""

from purgatory_udf.contract.line import as_text, read_line, read_row
from purgatory_udf.contract.rejection import Rejection

__all__ = ["Rejection", "as_text", "read_line", "read_row"]
