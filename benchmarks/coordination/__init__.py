"""How fast locks, rate limits and markets are, against other ways to do the same."""
