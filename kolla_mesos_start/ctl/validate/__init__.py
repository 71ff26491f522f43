"""Finds mistakes in a deployment before anything runs: in each service, and between services."""
