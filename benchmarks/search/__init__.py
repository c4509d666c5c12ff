"""Search: indexing, queries and pages; against other engines and the book's way."""
