"""The daemon started, and the process beside it that keeps it registered."""
