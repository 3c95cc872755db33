"""Tests of `purgatory_udf.rules`."""
