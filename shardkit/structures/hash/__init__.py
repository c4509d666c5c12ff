"""Hash."""
