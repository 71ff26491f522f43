"""A deployment as data: its directory, the files in it, and what they say. Nothing here connects to anything."""
