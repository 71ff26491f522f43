"""A deployment run on this machine as plain processes, with a ZooKeeper of its own."""
