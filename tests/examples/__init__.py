"""The deployments of etc/examples on this machine: for bin/quickstart, and for the tests of real programs.

Has the containers of each example, the values of this machine (ports, users, passwords), the installation
of the programs, and requests to the running services.
"""
