"""A running deployment for Prometheus: its metrics, and the endpoint that serves them."""
