"""Agreement between the clusters: members, equal tables, given-up and revoked operations."""
