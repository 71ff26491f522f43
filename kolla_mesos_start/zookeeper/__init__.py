"""A ZooKeeper session in one thread, and the znodes that it keeps."""
