"""What the log has said so far, as far as this cluster has read it. It tells; it asks nobody."""
