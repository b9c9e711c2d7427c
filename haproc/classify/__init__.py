"""Classification: the kind of a statement, the tables it touches, and the way it goes."""
