"""A node: a data directory and the parts that serve requests, without sockets; and its role."""
