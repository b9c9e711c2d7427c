"""Finds, for each client's request, the cluster and the way in which it is answered."""
