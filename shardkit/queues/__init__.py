"""Task queues: first in first out, priorities, delayed tasks, leases, dead letters, and workers."""
