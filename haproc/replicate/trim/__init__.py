"""How much of the log may go."""
