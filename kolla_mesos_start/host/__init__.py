"""What the operating system says about this host: its network interfaces and its user accounts."""
