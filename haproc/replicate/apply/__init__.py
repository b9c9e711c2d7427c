"""Applies the log's operations on this cluster, exactly once."""
