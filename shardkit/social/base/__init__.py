"""The keys of a network, and the values it returns."""
