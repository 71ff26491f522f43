"""The operator's side of ZooKeeper: the connection, a deployment's tree, and how it is read and changed."""
