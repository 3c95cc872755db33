"""The replay as Spark runs it: packed rows to groups, groups to settled operations, and those to tables."""
