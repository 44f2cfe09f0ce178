"""Transactions across the brokers of a cluster: questions to coordinators, and markers for leaders."""
