"""Families of keys, and how they become structures while they are in use."""
