"""Fewest blocks from owned units: bounds, search, placement, and the minimum block size."""
