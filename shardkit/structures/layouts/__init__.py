"""Layouts: which part holds a member, and when a part is split."""
