"""Lives of one daemon under a real agent, each random from a seed, with events at the worst instants."""
