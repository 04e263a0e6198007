"""Random graphs, inputs and options from any source of choices, and programs that make them."""
