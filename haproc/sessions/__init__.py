"""Clients' sessions: durable journals in the key-value store, adopted with a request."""
