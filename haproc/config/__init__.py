"""Configuration: one YAML file for a ring."""
