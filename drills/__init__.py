"""What runs by hand: measurements, and faults for minutes or hours. `tests/` has short forms of some of them.

benchmarks   what the agent costs             mutations    which change of the package no test finds
blackout     MariaDBs that lose their power   openstack    a whole OpenStack on several hosts
chaos        random faults, and a checker     zookeepers   other versions of ZooKeeper
containers   imported clusters in podman
"""
