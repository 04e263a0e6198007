"""Blocks as modules and the parent that calls them: wiring, ports, and new graphs."""
