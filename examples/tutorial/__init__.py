"""A wall: people sign in, follow each other, post, and read what others posted.

The application of docs/tutorial.md, on the servers of ``shardkit up examples/tutorial/wall.yaml``.
"""
