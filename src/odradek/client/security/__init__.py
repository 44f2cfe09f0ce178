"""TLS and SASL of clients: their settings, and the logins of their connections."""
