"""Clients' sessions: durable journals in the key-value store, adopted by whoever is asked."""
