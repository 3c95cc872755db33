"""Lines of request logs: in which files, written when, and what each says, in one shape whatever the version."""
