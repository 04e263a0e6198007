"""Random graph modules from any source of choices, and the inputs that go with them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from hierpart.testing.generate.choice import Choice, SeededChoice
from hierpart.testing.generate.emit import aliases as emit_aliases
from hierpart.testing.generate.emit import control_flow as emit_flow
from hierpart.testing.generate.emit import effects as emit_effects
from hierpart.testing.generate.emit import pure as emit_pure
from hierpart.testing.generate.emit import sizes as emit_sizes
from hierpart.testing.generate.emit import structure as emit_structure
from hierpart.testing.generate.features import chosen_features
from hierpart.testing.generate.graph_builder import REFUSALS, GraphBuilder, World, undisturbed
from hierpart.testing.generate.maker import Maker
from hierpart.testing.generate.metadata import annotate
from hierpart.testing.generate.tensors import (
    BATCHED_SHAPES,
    DTYPES,
    EMPTY_SHAPES,
    LAYOUTS,
    PLAIN_DTYPES,
    SHAPES,
    SPECS,
    ScalarSpec,
    SharedSpec,
    TensorSpec,
    values_of,
)

_REGISTERED = (
    emit_pure,
    emit_sizes,
    emit_effects,
    emit_structure,
    emit_flow,
    emit_aliases,
)  # importing them fills EMITTERS


def random_graph_module(
    seed: int,
    size: int = 12,
    width: int = 8,
    features: Collection[str] | None = None,
    without: Collection[str] = (),
    metadata: str = "fake",
) -> GraphModule:
    """Return a random graph module; the same arguments give the same one in every process.

    The arguments are those of :func:`hierpart.testing.graph_modules`; Hypothesis is not needed.
    """
    return make_graph_module(
        SeededChoice(seed), size, width, chosen_features(features, without), metadata
    )


def make_graph_module(
    choice: Choice, size: int, width: int, features: frozenset[str], metadata: str
) -> GraphModule:
    """Return a graph module made by ``choice``; see :func:`hierpart.testing.graph_modules`."""
    calls = [(5, 0)]
    if features & {"dynamic", "scalars"}:
        calls.append((7 if "dynamic" in features else 5, 1))
    with undisturbed():
        builder = GraphBuilder(calls, width)
        maker = Maker(builder, choice, features).swarm()
        specs = _inputs(maker)
        maker.steps(size)
        module = _finished(maker, specs)
    module.meta[SPECS] = tuple(specs)
    if metadata == "fake" and _annotated(module, specs) and _specialised(module):
        # As capture would: the graph is for this one size only.
        module.meta[SPECS] = tuple(
            spec.fixed() if isinstance(spec, TensorSpec) else spec for spec in specs
        )
    return module


def _annotated(module: GraphModule, specs: list[Any]) -> bool:
    """Annotate a module; one that torch does not run on fake tensors is left without values."""
    try:
        annotate(module, inputs_for(module), specs)
    except (*REFUSALS, AssertionError):
        for part in module.modules():
            for node in part.graph.nodes if isinstance(part, GraphModule) else ():
                for key in ("val", "tensor_meta"):
                    node.meta.pop(key, None)
        return False
    return True


def _specialised(gm: GraphModule) -> bool:
    sizes = [
        size
        for node in _placeholders(gm)
        if isinstance(node.meta.get("val"), Tensor)
        for size in node.meta["val"].shape
        if isinstance(size, torch.SymInt)
    ]
    return any(size.node.maybe_as_int() is not None for size in sizes)


def inputs_for(gm: GraphModule, call: int = 0, batch: int = 5) -> tuple[Any, ...]:
    """Return the arguments for the given call of a random graph module.

    There is one value for each placeholder, in containers where the graph's codegen takes them
    apart. For other modules the tensors are made from the placeholders' ``val`` or ``tensor_meta``.

    Raises:
        ValueError: ``gm`` is no random graph module and a placeholder has no metadata.
    """
    specs = gm.meta.get(SPECS)
    if specs is None:
        specs = [_spec_of(node, position) for position, node in enumerate(_placeholders(gm))]
    return nested(gm, values_of(specs, batch, call))


def _placeholders(gm: GraphModule) -> Iterable[Node]:
    return (node for node in gm.graph.nodes if node.op == "placeholder")


def _spec_of(node: Node, seed: int) -> Any:
    value = node.meta.get("val", node.meta.get("example_value", node.meta.get("tensor_meta")))
    if value is None:
        raise ValueError(f"placeholder {node.name} has no val: pass inputs, or annotate the graph")
    if not hasattr(value, "shape"):
        return value
    return TensorSpec(tuple(int(size) for size in value.shape), value.dtype, seed=seed)


def _inputs(m: Maker) -> list[Any]:
    specs: list[Any] = []
    nodes: list[Node] = []
    names = ("x", "input", "y", "range", "z")
    for position in range(m.number(1, 3)):
        if position and "shared_inputs" in m.features and _now_and_then(m, "shared_inputs"):
            of = m.number(0, position - 1)
            specs.append(SharedSpec(of, m.pick(("same", "whole", "transposed", "first"))))
            make = _shared(specs[-1], nodes[of])
        else:
            specs.append(_tensor_spec(m, position))
            make = _made(specs[-1])
        nodes.append(m.builder.placeholder(names[position], make))
    if "scalars" in m.features and m.flag():
        specs.append(ScalarSpec(m.pick(((2.0, 0.5), (3,), (True, False)))))
        default = {"default_value": specs[-1].make()} if m.flag() else {}
        m.builder.placeholder("scale", _given(specs[-1]), **default)
    return specs


def _now_and_then(m: Maker, feature: str) -> bool:
    return m.flag() if feature in m.favoured else m.rarely()


def _made(spec: TensorSpec) -> Callable[[World], Tensor]:
    return lambda world: spec.make(world.batch, world.call)


def _shared(spec: SharedSpec, other: Node) -> Callable[[World], Tensor]:
    return lambda world: spec.make(world.values[other])


def _given(spec: ScalarSpec) -> Callable[[World], Any]:
    return lambda world: spec.make(world.call)


def _tensor_spec(m: Maker, position: int) -> TensorSpec:
    shapes = SHAPES
    if "dynamic" in m.features and (position == 0 or m.flag()):
        shapes = BATCHED_SHAPES
    elif "empty" in m.features and m.rarely():
        shapes = EMPTY_SHAPES
    dtypes = DTYPES if "dtypes" in m.features and m.rarely() else PLAIN_DTYPES
    layouts = LAYOUTS if "layouts" in m.features and m.rarely() else LAYOUTS[:1]
    shape = m.pick(shapes if m.flag() else shapes[:2])
    return TensorSpec(shape, m.pick(dtypes), m.pick(layouts), position)


def _finished(m: Maker, specs: Sequence[Any]) -> GraphModule:
    """Close the graph, at times with arguments and results in containers that it takes apart."""
    outputs = _outputs(m)
    if "pytree" not in m.features or not m.flag():
        return m.builder.finish(outputs)
    places = list(range(len(specs)))
    arguments: dict[str, Any] = m.pick(
        (
            {f"a{i}": i for i in places},
            {"first": places[0], "rest": {f"key_{i}": i for i in places[1:]}},
            {"every": [(i,) for i in places]},
            {"given": {"all_but": places[:-1], "nothing": ()}, "last": places[-1]},
        )
    )
    for node in m.builder.graph.find_nodes(op="placeholder"):
        node.args = ()  # such a codegen knows no defaults
    leaves, out_spec = pytree.tree_flatten(outputs)
    in_spec = pytree.tree_structure((tuple(arguments.values()), {}))
    return m.builder.finish(tuple(leaves), _PyTreeInfo([*arguments], in_spec, out_spec))


def nested(gm: GraphModule, flat: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments of a call of ``gm``, given one value for each placeholder."""
    codegen = gm.graph._codegen
    if not isinstance(codegen, _PyTreeCodeGen):
        return tuple(flat)
    args, kwargs = pytree.tree_unflatten(flat, codegen.pytree_info.in_spec)
    return (*args, *kwargs.values())


def _outputs(m: Maker) -> Any:
    """Return what the graph returns: the last value, or a structure of picked ones."""
    nodes = [node for node in m.builder.scope if _may_return(m, node)]
    last = nodes[-1]
    if "containers" not in m.features:
        return tuple(dict.fromkeys([*nodes[:-1:3], last]))
    kind = m.number(0, 5)
    some = [m.pick(nodes) for _ in range(m.number(0, 3))]
    if kind == 0:
        return last
    if kind == 1:
        return (last, *some)
    if kind == 2:
        return [last, None, *some]
    if kind == 3:
        return {"last": last, "rest": tuple(some)}
    if kind == 4:
        return (last, {"again": [last, *some], "none": None, "number": 3})
    return ((), tuple(nodes))


def _may_return(m: Maker, node: Node) -> bool:
    value = m.value(node)
    if value is None:  # what ``getitem`` and operators give is known to be None beforehand
        known = isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
        return known and "multi_output" in m.features
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return "tuple_outputs" in m.features
    return isinstance(value, (Tensor, int, float, bool, torch.Size))
