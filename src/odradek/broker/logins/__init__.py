"""Logins of clients at listeners with SASL. A broker without such a listener does not load this package."""
