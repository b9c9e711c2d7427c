"""Objects that all parts of one member of the ring share: its facts, its state, its log."""
