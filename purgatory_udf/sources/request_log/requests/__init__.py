"""Requests taken apart: operations that waited, and the facts that each request shows of a partition at a broker."""
