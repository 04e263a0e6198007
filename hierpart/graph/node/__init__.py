"""Facts of one node, or of one operator: schemas, values, symbols, strides, names, effects.

Nothing here knows of other nodes than those that a node reads, nor of backends and blocks.
"""
