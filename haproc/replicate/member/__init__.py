"""What the parts of a ring's member share."""
