"""A partition at one broker: from facts to what its log, its high watermark and its leadership did, and when."""
