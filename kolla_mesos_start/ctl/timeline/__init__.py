"""How a start went: from what it has left in ZooKeeper to the critical path, and the page that shows it."""
