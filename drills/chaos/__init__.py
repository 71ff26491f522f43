"""Replicas, one-time commands and daemons under random faults, and a checker: `python -m drills.chaos`."""
