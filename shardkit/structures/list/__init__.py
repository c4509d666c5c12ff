"""List."""
