"""The features of random graphs: the knobs of :func:`hierpart.testing.graph_modules`."""

from __future__ import annotations

from collections.abc import Collection

FEATURES: dict[str, str] = {
    "arithmetic": "elementwise ops, reductions, products, concatenation",
    "dtypes": "several dtypes, conversions",
    "indexing": "indexing by whole numbers",
    "kwargs": "operands given by keyword",
    "python": "Python functions and methods, as symbolic tracing writes them",
    "views": "views, and ops that may or may not return a view",
    "multi_output": "ops with several outputs, taken apart at once or later, used whole, or None",
    "sizes": "sizes, whole-number arithmetic on them and comparisons",
    "mutation": "in-place ops, methods and operators, out=, setitem, hidden writes",
    "reshape_in_place": "ops that write the sizes of a tensor in place",
    "random": "ops that draw from the random stream",
    "random_in_place": "in-place ops that draw from the random stream",
    "asserts": "asserts on values and sizes, which hold in the original order",
    "prints": "prints",
    "buffers": "buffers read and written, two names of one storage",
    "parameters": "parameters, also under a second name; they require grad",
    "constants": "tensor constants, names that a splitter likes for itself, weight-only work",
    "modules": "submodules as leaves",
    "regions": "no_grad and autocast regions as Dynamo writes them",
    "control_flow": "cond, switch, while_loop, map, scan, invoke_subgraph; nested up to depth 3; "
    "branch modules that several ops share, at one level or at several",
    "branch_effects": "branches that write, print, assert, and share attributes",
    "empty": "inputs without elements",
    "layouts": "inputs that are transposed, strided, offset or expanded",
    "scalars": "inputs that are numbers and truth values, with and without defaults",
    "shared_inputs": "one tensor, or two views of one, given for two inputs",
    "pytree": "inputs and outputs in nested containers, by a pytree codegen as torch.export's",
    "containers": "nested, repeated, constant and absent outputs, inputs as outputs",
    "tuple_outputs": "a whole tuple of an op with several outputs as an output",
    "dynamic": "sizes that differ from call to call, symbolic in the metadata",
}
"""Every feature of a random graph, and what it brings."""

FUNCTIONAL = frozenset(FEATURES) - {"mutation", "reshape_in_place", "random_in_place"}
"""The features of graphs that write nothing in place."""

METADATA = ("fake", "none")
"""``fake``: ``val`` and ``tensor_meta`` on every node. ``none``: neither."""


def chosen_features(
    features: Collection[str] | None = None, without: Collection[str] = ()
) -> frozenset[str]:
    """Return ``features`` (default: all but ``dynamic``) less ``without``, checked.

    Raises:
        ValueError: A name is not one of ``FEATURES``.
    """
    wanted = set(FEATURES) - {"dynamic"} if features is None else set(features)
    for name in sorted(wanted | set(without)):
        if name not in FEATURES:
            raise ValueError(f"no feature is called {name!r}; there are {', '.join(FEATURES)}")
    if "dynamic" in wanted:
        wanted.discard("reshape_in_place")  # torch crashes on it where sizes are symbolic
    return frozenset(wanted - set(without)) | {"arithmetic"}
