"""Mutants: small faults planted in copies of the steps, to see whether the kit finds them."""
