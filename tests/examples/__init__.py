"""The deployments of etc/examples on this machine: for bin/quickstart, and for the tests of real programs.

What lives here: the containers of each, what only this machine can say (ports, users, passwords), the
installation of the programs, and what can be asked once all are up.
"""
