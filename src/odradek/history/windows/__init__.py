"""The newest commits of many keys, in arrays."""
