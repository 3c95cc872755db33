"""The order of everything that happens, for many at once: from it follow the gauges of groups' purgatories."""
