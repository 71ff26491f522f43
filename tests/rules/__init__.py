"""The rules of the house, and what the documents say."""
