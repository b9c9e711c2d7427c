"""A local ring for development: Java, jars, Spark Connect servers and HAProcs as processes."""
