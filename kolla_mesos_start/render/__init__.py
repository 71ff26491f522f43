"""Strings and config files rendered from variables. Nothing here writes a file."""
