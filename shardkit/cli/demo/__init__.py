"""The demo: a web access log replayed through decorated functions and a structure."""
