"""This cluster's queue: the next units, the outcomes, the operations that fail."""
