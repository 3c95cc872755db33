"""What it costs, and what it survives: measurements that print ratios; kills, faults and bad input, long form."""
