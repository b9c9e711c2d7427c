"""Finds the class of a Spark Connect plan (protocol buffers); in doubt the plan is refused."""
