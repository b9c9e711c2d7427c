"""The objects that the parts of a ring's member share."""
