"""Codecs: values in Python, and their stored form; docs/codecs.md has a table of them."""
