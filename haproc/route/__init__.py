"""Routing: from a client's request to the cluster and the mechanism that answer it."""
