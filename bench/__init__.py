"""Benchmarks: each prints a table and writes the same figures to bench/results."""
