"""Decisions and values: no process, no server."""
