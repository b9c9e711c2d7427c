"""Pinning: making a replicated statement mean the same on every cluster."""
