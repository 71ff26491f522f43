"""A running deployment as one record: what its containers do, why it is not up, and what is outdated."""
