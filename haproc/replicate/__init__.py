"""Replication: operations, their order, and how each cluster applies them exactly once."""
