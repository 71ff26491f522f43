"""A session, a client and locks with real ZooKeeper servers."""
