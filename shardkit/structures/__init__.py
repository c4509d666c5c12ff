"""Memory-dense structures over one server or many."""
