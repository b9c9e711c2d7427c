"""The engine: HAProc's access to a Spark cluster over Spark Connect."""
