"""The query language: parsing, trees, analysis."""
