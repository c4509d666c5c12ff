"""Simulation: every protocol under every schedule, one seed at a time. For your own code too.

One schedule is one run of some clients against servers in the process, in virtual time: a seed
decides which client runs, what arrives, what is lost and which process dies. `shardkit.testing`
exports the public names; docs/simulation.md is the guide.
"""
