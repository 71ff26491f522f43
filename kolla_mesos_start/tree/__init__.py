"""What stands in a deployment's tree: its paths, what the texts there mean, and who may change them."""
