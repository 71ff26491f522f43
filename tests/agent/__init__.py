"""Whole agents with a real ZooKeeper: one file for each chapter of the contract."""
