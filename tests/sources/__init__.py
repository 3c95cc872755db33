"""Tests of `purgatory_udf.sources`."""
