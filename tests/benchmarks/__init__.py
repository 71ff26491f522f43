"""What the agent costs, measured: `python -m tests.benchmarks`. No test: it prints, and asserts nothing."""
