"""One operation's story, or one group's: what it asked for, what it waited on, what ended it and why not before."""
