"""Classification: the kind of a statement, the tables it touches, and its class."""
