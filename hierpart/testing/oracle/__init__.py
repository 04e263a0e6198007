"""What a graph does when it is run: the oracle that results are compared with."""
