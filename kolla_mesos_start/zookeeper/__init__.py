"""One ZooKeeper session in one thread, and what is kept in it. Nothing here knows Kolla's tree."""
