"""Incidents of the monitor, and the webhooks that announce them."""
