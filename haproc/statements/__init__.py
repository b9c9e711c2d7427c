"""Statements from every door: runs them, and keeps their results until clients fetch them."""
