"""Which nodes TensorRT takes: the converter registry's answer, what it does not check, and a trial.

The registry's validators are necessary and not sufficient: they let pass dtypes, ranks and empty
tensors that no engine holds, random numbers that are not PyTorch's, and nodes without metadata. So
facts are checked first, then the registry is asked, then a network of the one node is made. The
answer is remembered by everything that it depends on, so a model's equal layers are asked once.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from hierpart.backends.tensorrt import library
from hierpart.backends.tensorrt.lowering import Answer, Refusal, expand
from hierpart.backends.tensorrt.network import (
    DTYPES,
    NetworkError,
    log_kept,
    make_network,
    own_settings,
)
from hierpart.backends.tensorrt.ranges import is_data_dependent, open_sizes, unbounded
from hierpart.backends.tensorrt.settings import Settings
from hierpart.backends.tensorrt.stand_ins import likeness, one_node, unpacks, used_items
from hierpart.graph import (
    SYMBOLIC,
    SpecialisationError,
    describe,
    has_value,
    is_getitem,
    is_symbolic,
    value_of,
)
from hierpart.plan import Reason


@functools.cache
def support_for(settings: Settings) -> Support:
    """Return the one object that answers for these settings in this process."""
    return Support(settings)


class Support:
    """Answers for nodes and remembers.

    Args:
        settings: The backend's settings; ``truncate_double`` and ``max_size`` matter here.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.asked = 0
        self._known: dict[Any, Answer] = {}

    def answer(self, node: Node) -> Answer:
        """Return the answer for a callable node; the graph is not changed."""
        refusal = self._before_asking(node)
        if refusal is not None:
            return Answer(refusal)
        key = self._key(node)
        if key not in self._known:
            self.asked += 1
            with own_settings(self.settings), log_kept([]):
                self._known[key] = self._find_out(node)
        return self._known[key]

    def _before_asking(self, node: Node) -> Refusal | None:
        """Check what has to be there for a question to make sense."""
        if node.op != "call_function":
            return Reason.NOT_LISTED, f"a {node.op}; capture the model with torch.export"
        for source in (node, *node.all_input_nodes):
            if not has_value(source) and source.op != "get_attr":
                return Reason.NO_METADATA, "" if source is node else f"of its input {source.name}"
        return None

    def _key(self, node: Node) -> Any:
        """Return everything that the answer depends on."""

        def shown(source: Node) -> Any:
            value = value_of(source) if has_value(source) else None
            return f"<{source.op} {describe(value)} {_ranges(value)}>"

        uses = sorted(
            f"item {u.args[1]}" if is_getitem(u) else "output" if u.op == "output" else "op"
            for u in node.users
        )
        args = map_arg((node.args, node.kwargs), lambda n: shown(n))
        return node.target, repr(args), shown(node), tuple(uses)

    def _find_out(self, node: Node) -> Answer:
        refusal = self._facts(node)
        if refusal is not None or unpacks(node):
            return Answer(refusal)  # unpacking was tried with what it unpacks
        refusal = self._registry(node) or self._trial(node)
        if refusal is None:
            return Answer()
        return self._expanded(node, refusal)

    def _facts(self, node: Node) -> Refusal | None:
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            if target._schema.is_mutable:
                return Reason.MUTATES, str(target)
            if torch.Tag.nondeterministic_seeded in target.tags and _draws(node):
                return Reason.EFFECT, "TensorRT's random numbers are not PyTorch's"
        if isinstance(target, torch._ops.HigherOrderOperator):
            return Reason.CONTROL_FLOW, f"{target} has no converter"
        for value in _tensors(node):
            refused = self._value(value)
            if refused is not None:
                return refused
        return None

    def _value(self, value: Any) -> Refusal | None:
        if value.layout is not torch.strided:
            return Reason.LAYOUT, str(value.layout)
        if value.dtype not in DTYPES:
            truncates = value.dtype is torch.float64 and self.settings.truncate_double
            if value.dtype is torch.float64 and not truncates:
                return Reason.DTYPE, "float64; the option truncate_double computes it in float32"
            if not truncates:
                return Reason.DTYPE, str(value.dtype).removeprefix("torch.")
        if value.dim() > 8:
            return Reason.RANK, f"rank {value.dim()}, at most 8"
        if is_data_dependent(value):
            return Reason.DATA_DEPENDENT, f"shape {list(value.shape)}"
        if any(not is_symbolic(s) and s == 0 for s in value.shape):
            return Reason.LAYOUT, f"an empty tensor of shape {list(value.shape)}"
        if self.settings.max_size is None:
            for size in open_sizes(value):
                return Reason.DYNAMIC, unbounded(size)
        return self._device(value.device)

    def _device(self, device: torch.device) -> Refusal | None:
        if device.type == "cuda":
            if torch.cuda.is_available() and device.index not in (
                None, torch.cuda.current_device(),
            ):  # fmt: skip
                return Reason.LAYOUT, f"device {device}; engines are built for the current one"
            return None
        if device.type == "cpu" and self.settings.target and library.gpu() is None:
            return None  # built for another machine, run eagerly here
        return Reason.LAYOUT, f"device {device.type}; engines run on GPUs"

    def _registry(self, node: Node) -> Refusal | None:
        """Ask the converter registry, and where it refuses find out why."""
        from torch_tensorrt.dynamo.conversion import DYNAMO_CONVERTERS as REGISTRY

        if not any(node.target in known for known in REGISTRY.registries):
            return Reason.NOT_LISTED, "no converter"
        asks = _asking(REGISTRY, likeness(node))
        if asks is None:
            return Reason.VALIDATOR, "no converter takes it with these arguments"
        if isinstance(asks, str):
            return Reason.VALIDATOR, asks
        if asks.get("requires_output_allocator"):
            return Reason.DATA_DEPENDENT, "its result's shape depends on data"
        if asks.get("requires_native_multidevice"):
            return Reason.EFFECT, "a collective"
        if asks.get("only_static"):
            return Reason.DYNAMIC, "its converter takes fixed sizes only"
        return None

    def _trial(self, node: Node, expansion: GraphModule | None = None) -> Refusal | None:
        """Make a network of the one node; weights are tried as inputs and as constants."""
        why = ""
        for constants in (False, True):
            alone = one_node(node, constants, expansion)
            if alone is None:
                continue
            log: list[str] = []
            try:
                with log_kept(log):
                    make_network(alone, self.settings)
            except (NetworkError, ValueError) as error:
                why = why or "; ".join([str(error), *log[:1]])
            else:
                return None
        return (Reason.VALIDATOR, f"its network cannot be made: {why}") if why else None

    def _expanded(self, node: Node, refusal: Refusal) -> Answer:
        """Return the answer for what the op is composed of, if anything."""
        try:
            body = expand(node)
        except SpecialisationError as error:
            return Answer((Reason.DYNAMIC, f"its decomposition {error}"))
        except Exception as error:  # a decomposition is any function, run on fakes
            detail = f"{refusal[1]}; its decomposition failed: {type(error).__name__}"
            return Answer((refusal[0], detail))
        if body is None:
            return Answer(refusal)
        for inner in body.graph.nodes:
            if not inner.op.startswith("call_"):
                continue
            why = self._before_asking(inner) or self._facts(inner)
            if not unpacks(inner):
                why = why or self._registry(inner)
            if why is not None:
                named = f"decomposed, {inner.target}: {why[1] or why[0].value}"
                return Answer((refusal[0], f"{refusal[1]}; {named}"))
        why = self._trial(node, body)
        if why is not None:
            return Answer((refusal[0], f"{refusal[1]}; decomposed, {why[1]}"))
        return Answer(expansion=body)


def _asking(registry: Any, node: Node) -> Any:
    """Return the flags of the converter that takes the node, ``None``, or why asking failed."""
    try:
        found = registry.get(node)
        if found is not None:
            return found[2]
        settings, assumed = registry.compilation_settings, {"assume_dynamic_shape_support": True}
        registry.compilation_settings = type(settings)(**{**vars(settings), **assumed})
        try:
            found = registry.get(node)
        finally:
            registry.compilation_settings = settings
    except Exception as error:  # validators are any functions
        return f"its validator failed: {type(error).__name__}: {error}"
    return None if found is None else {**found[2], "only_static": True}


def _tensors(node: Node) -> Iterator[Any]:
    """Yield the tensors that a node reads and those of its results that are used."""
    value = value_of(node)
    if isinstance(value, (tuple, list)):
        value = [value[i] for i in used_items(node)]
    found = [value]
    if not unpacks(node):
        found += [value_of(s) for s in node.all_input_nodes if has_value(s)]
    for item in found:
        items = item if isinstance(item, (tuple, list)) else (item,)
        yield from (v for v in items if isinstance(v, torch.Tensor))


def _draws(node: Node) -> bool:
    """Whether an op that can draw random numbers does; dropout of nothing, or in inference, no."""
    target: Any = node.target
    names = [a.name for a in target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    defaults = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}
    given = defaults | given
    if "dropout_p" in given:
        return bool(given["dropout_p"] != 0)
    return given.get("train", given.get("training")) is not False


def _ranges(value: Any) -> str:
    """Return the ranges of the symbolic sizes in a value as text."""
    if isinstance(value, SYMBOLIC):
        known: Any = value.node.shape_env
        symbols = sorted(value.node.expr.free_symbols, key=str)
        return " ".join(f"{s}:{known.var_to_range.get(s)}" for s in symbols)
    if isinstance(value, torch.Tensor) and value._has_symbolic_sizes_strides:
        return " ".join(_ranges(s) for s in value.shape if is_symbolic(s))
    if isinstance(value, (tuple, list)):
        return " ".join(map(_ranges, value))
    return ""
