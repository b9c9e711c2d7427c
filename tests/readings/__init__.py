"""What Spark makes of the statements of the tests, recorded, and what asks and compares it."""
