"""The nodes of a cluster: their registrations, the sessions of brokers, and a broker's own side of both."""
