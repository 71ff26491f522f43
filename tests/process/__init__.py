"""Real processes, without a ZooKeeper."""
