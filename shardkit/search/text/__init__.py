"""Text analysis and relevance."""
