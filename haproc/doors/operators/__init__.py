"""The operators' and peers' doors: the queue, drains, members, heartbeats, forwarded queries."""
