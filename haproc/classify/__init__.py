"""Classification: finds a statement's kind, the tables that it touches, and its class."""
