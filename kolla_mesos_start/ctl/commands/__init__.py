"""The subcommands: a function for each, with its arguments, what it prints, and its exit status.

No module imports another one: what several of them need is in the folders below.
"""
