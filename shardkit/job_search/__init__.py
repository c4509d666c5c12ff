"""Job search."""
