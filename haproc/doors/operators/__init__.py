"""The operators' and peers' wing: the queue, drains, members, heartbeats, forwarded queries."""
