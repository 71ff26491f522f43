"""The startup agent of Kolla containers: waits, renders, bootstraps once, registers, execs."""

__version__ = "0.1.0"
