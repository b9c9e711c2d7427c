"""This cluster's queue: what it runs next, what came of it, what fails."""
