"""Pinning: changes a statement so that it means the same on every cluster, at any time."""
