"""Documents from files, and for other engines."""
