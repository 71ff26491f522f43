"""What the agent costs, measured: `python -m drills.benchmarks`. No test: it prints, and asserts nothing."""
