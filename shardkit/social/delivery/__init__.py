"""The way of a post from its author to the timelines of its readers."""
