"""Checks of a partition and its plan by the contract, C1 to C12."""
