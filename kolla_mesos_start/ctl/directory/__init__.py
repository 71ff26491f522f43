"""A deployment as data: its directory, and what the files in it say. Nothing here connects to anything."""
