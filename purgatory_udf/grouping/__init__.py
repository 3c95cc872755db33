"""Groups of keys: a call taken apart into those of its groups, and what each of them may decide."""
