"""What a statement is, and how it travels: Spark reads it, pure code judges what Spark read."""
