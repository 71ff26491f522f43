"""Renders strings and config files from variables. Nothing here writes a file."""
