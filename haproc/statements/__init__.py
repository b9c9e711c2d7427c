"""Statements, whatever door they came by: what runs, what is kept, what is fetched."""
