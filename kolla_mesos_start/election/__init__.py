"""Elections: which instance of a daemon bootstraps a cluster that is down.

`records`, `decide` and `words` are pure, and shared with the operator's tool.
"""
