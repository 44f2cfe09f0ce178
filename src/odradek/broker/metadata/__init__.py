"""The catalogue: the controller, the quorum that commits its records, and what requests read."""
