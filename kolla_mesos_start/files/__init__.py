"""Config files in the container, written whole or not at all. What they contain is decided elsewhere."""
