"""Checks of one backend: its members, its verdicts, and the blocks that it compiles."""
