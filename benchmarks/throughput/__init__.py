"""How fast links carry commands, against what a program written by hand for the purpose reaches.

Run by ``python benchmarks/throughput``; see docs/performance.md.
"""
