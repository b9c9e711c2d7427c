"""Clients' sessions: durable journals in the ring's keyed store, adopted by whoever is asked."""
