"""What doors over HTTP share: listeners, access, bodies read and errors written."""
