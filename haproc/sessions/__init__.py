"""Clients' sessions: their journals in the key-value store, and their adoption by HAProcs."""
