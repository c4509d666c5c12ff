"""Benchmarks of social networks; see ``__main__``."""
