"""The metadata log, the controller, and what requests read of the catalogue."""
