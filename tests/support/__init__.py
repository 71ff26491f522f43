"""What tests share: servers, agents, the operator's tool, networks, a site."""
