"""A compiled block beside the same block run eagerly."""
