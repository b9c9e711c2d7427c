"""Combines INSERTs, UPDATEs and DELETEs by key (``WHERE id = 7``), and upserts in one statement."""
