"""Combining INSERTs of literals, UPDATEs and DELETEs by key, and upserts into one statement."""
