"""Logins and encryption of connections, for clients and brokers: SASL's mechanisms, key stores, secrets."""
