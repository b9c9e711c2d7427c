"""The Spark Connect door: it serves PySpark and the other clients of Spark Connect."""
