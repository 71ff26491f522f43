"""Commands run to their end: under a guard process, and one-time commands under a lease."""
