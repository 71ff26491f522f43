"""The startup agent of Kolla containers: waits, renders, bootstraps once, registers, execs."""

__version__ = "1.0.0"
