"""Completion of names as they are typed: recent contacts, and address books of groups."""
