"""The controller: the requests that change the catalogue, and those of the brokers of a cluster."""
