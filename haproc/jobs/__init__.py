"""Batch jobs: Python programs that run beside HAProcs and belong to the ring."""
