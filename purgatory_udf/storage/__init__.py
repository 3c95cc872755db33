"""Where everything lies: Delta tables by path, a run's layout and record, who may write there, what is written once."""
