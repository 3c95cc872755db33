"""What brokers have to know of each other: who led what, names, transactions, groups; told by the log, or given."""
