"""The membership of a broker in a cluster: its requests to the controller, and its copy of the metadata log."""
