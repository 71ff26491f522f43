"""What holds the agent to its promises. A file for each module; `integration/` needs a real ZooKeeper."""
