"""Clients' sessions: durable journals in the key-value store, adopted by the HAProc that gets a
request."""
