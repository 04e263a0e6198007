"""Reads graphs and partitions by its own code, none of the partitioner's."""
