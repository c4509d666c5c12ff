"""The same work done by raw sockets (the limit), by shardkit and by redis-py, taking turns."""
