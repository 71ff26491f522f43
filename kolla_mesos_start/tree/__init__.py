"""The znode tree of a deployment: its paths, what their contents mean, and who may change them."""
