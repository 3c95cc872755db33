"""Tests of `purgatory_udf.common`."""
