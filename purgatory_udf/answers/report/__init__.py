"""One HTML file that shows a replay: when operations ended, how full the purgatories were, what was slow and why."""
