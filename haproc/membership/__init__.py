"""Membership: the states of a HAProc, the health of its cluster, and its peers."""
