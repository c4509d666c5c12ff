"""Links carry batches to shards and bring replies back, in order: the only things that do I/O."""
