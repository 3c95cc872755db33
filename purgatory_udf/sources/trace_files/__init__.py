"""Imports JSON Lines and Parquet: every line becomes a row of `events`, or of `rejected_events` with the reason.

In reading order:

- `input_files`: finds the files; `text_lines`: their lines, in pieces
- `piece_validation`, `typed_columns`: validation of a piece, and its fast path for most lines
- `trace_reader`: all pieces of an input as one source; options and report of an import
- `event_order`: sorts the events into files; `rejected_lines`: late and repeated events, rows of `rejected_events`
- `trace_import`: the import as a whole
"""
