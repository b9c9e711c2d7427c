"""The common parts of doors over HTTP: listeners, access, bodies read and errors written."""
