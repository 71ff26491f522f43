"""What is wrong with a deployment, before anything runs: in one service, and over all of them."""
