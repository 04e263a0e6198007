"""Who owns a node: the tester that asks backends, what users exclude, what boundaries forbid."""
