"""Benchmarks: each prints a table of figures and writes the same figures to bench/results."""
