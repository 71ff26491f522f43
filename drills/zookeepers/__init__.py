"""The tests that depend on ZooKeeper, against other versions of the server than Debian's.

PyPI's `pyspark` ships the jars of a whole server. Each `<version>.txt` pins the package that has that
version.
"""
