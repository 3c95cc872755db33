"""Tests of `purgatory_udf.rules.engine`."""
