"""Emitters: each adds nodes of one kind to a graph under construction."""
