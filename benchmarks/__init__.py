"""Benchmarks of hierpart against its peers; ``python -m benchmarks.run`` runs them."""
