"""The Spark Connect door."""
