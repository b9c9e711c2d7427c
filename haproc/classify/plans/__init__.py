"""What a Spark Connect plan is: read from its protocol buffers, fail-closed, before it runs."""
