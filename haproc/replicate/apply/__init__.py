"""Applying the log to this cluster, exactly once."""
