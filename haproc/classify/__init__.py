"""Classification: what a statement is, which tables it touches, and who may run it where."""
