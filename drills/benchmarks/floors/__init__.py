"""The least that could be done instead, each a program of its own that imports nothing of ours."""
