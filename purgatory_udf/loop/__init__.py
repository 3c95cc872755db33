"""The engine: the reference's rules as one loop over events in order of time, compiled."""
