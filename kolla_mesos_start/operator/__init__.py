"""What people run outside containers. The agent never imports it, and it may need more packages."""
