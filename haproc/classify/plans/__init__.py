"""The class of a Spark Connect plan: read from its protocol buffers, fail-closed."""
