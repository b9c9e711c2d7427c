"""Statements of every door: those that run, and results that are kept and fetched."""
