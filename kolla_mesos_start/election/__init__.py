"""Elections: which instance of a daemon bootstraps a cluster that is down.

`position`, `records`, `decide` and `words` are pure, and shared with the operator's tool.
"""
