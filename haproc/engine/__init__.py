"""The engine: a Spark cluster spoken to over Spark Connect."""
