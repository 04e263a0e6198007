"""Facts of an FX graph: what every step knows of nodes, values, effects and storages.

Takes a :class:`torch.fx.GraphModule` and reads it; the only graphs that are written here are copies
in a canonical form. Gives :class:`Facts` (edges, units, hazards, compute ops), and answers on one
node from :mod:`hierpart.graph.node`: its value, effect, op names, size symbols, strides.
"""

from __future__ import annotations

from hierpart.graph.canonical_form import Canonical, canonical, describe
from hierpart.graph.construction import LazyModule, append_node
from hierpart.graph.crossing import can_flatten
from hierpart.graph.facts import CALLABLE, Facts, Known, analyse
from hierpart.graph.literals import lift_literals, lift_literals_of
from hierpart.graph.node.control_flow import check_modes, is_recursed, mode_of, op_of, set_branch
from hierpart.graph.node.effects import branches_of, resolve_attribute
from hierpart.graph.node.op_names import OpSet, check_ops, names_of
from hierpart.graph.node.strides import Restride, restrider, same_layout
from hierpart.graph.node.symbols import (
    Evaluate,
    SpecialisationError,
    evaluator,
    guards_of,
    is_symbolic,
    places,
    shape_env_of,
    sizes_stay_open,
)
from hierpart.graph.node.values import (
    SYMBOLIC,
    Kind,
    bytes_of,
    bytes_of_value,
    expression_of,
    has_value,
    hint,
    is_getitem,
    kind_of,
    kind_of_value,
    reads_sizes,
    symbol_of,
    symbols_in,
    value_of,
)
from hierpart.graph.validation import check_graph

__all__ = [
    "CALLABLE",
    "Canonical",
    "Evaluate",
    "Facts",
    "Kind",
    "Known",
    "LazyModule",
    "OpSet",
    "Restride",
    "SYMBOLIC",
    "SpecialisationError",
    "analyse",
    "append_node",
    "branches_of",
    "bytes_of",
    "bytes_of_value",
    "can_flatten",
    "canonical",
    "check_graph",
    "check_modes",
    "check_ops",
    "describe",
    "evaluator",
    "expression_of",
    "guards_of",
    "has_value",
    "hint",
    "is_getitem",
    "is_recursed",
    "is_symbolic",
    "kind_of",
    "kind_of_value",
    "lift_literals",
    "lift_literals_of",
    "mode_of",
    "names_of",
    "op_of",
    "places",
    "reads_sizes",
    "resolve_attribute",
    "restrider",
    "same_layout",
    "set_branch",
    "shape_env_of",
    "sizes_stay_open",
    "symbol_of",
    "symbols_in",
    "value_of",
]
