"""One file for each subcommand: its arguments, what it prints, and its exit status.

No command imports another one: what several of them need is in the folders below.
"""
