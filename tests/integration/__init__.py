"""Tests that need a real ZooKeeper; the fixtures are in `tests/conftest.py`."""
