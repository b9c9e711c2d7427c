"""What the clusters agree on: who is a member, who holds the same, what is given up."""
