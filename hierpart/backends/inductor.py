"""Inductor: compiles a block by itself, from its symbolic metadata.

``torch._inductor.standalone_compile`` isolates the block from an ambient ``torch.compile``, takes
size symbols from the graph (other ways bake in sizes and predicates), keeps the strides of ``val``
and decomposes by its own table, so ops may reach it whole.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.backends import CompiledBlock
from hierpart.effects import resolve_attribute
from hierpart.errors import OptionError, nearest
from hierpart.plan import Reason, Verdict
from hierpart.values import SYMBOLIC, has_value, value_of

DEVICES = ("cpu", "cuda", "xpu", "mps")
CONTROL_FLOW = frozenset(
    {
        "cond", "while_loop", "while_loop_stack_output", "switch", "scan", "map_impl",
        "invoke_subgraph", "wrap_with_set_grad_enabled", "wrap_with_autocast",
    }
)  # fmt: skip
"""Higher-order ops that ``standalone_compile`` takes with their branches."""
WRAPPERS = frozenset({"auto_functionalized", "auto_functionalized_v2"})
"""Higher-order ops around one operator, or around a control-flow op whose branches write."""
EFFECTS = frozenset({"with_effects", "print", "_make_token", "_sink_tokens"})
QUANTISED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})
PURE_HOMES = ("torch", "_operator", "math", "builtins")

_YES = Verdict("inductor", True)


class InductorBackend:
    """Compiles blocks with TorchInductor, on the CPU (with a C++ compiler) and on GPUs."""

    name = "inductor"
    takes_scalars = True
    takes_symbols = True
    """It looks for size symbols among scalar inputs alone when it works with a size as a float."""
    keeps_aliases = False
    max_rank = None
    keep_ops = frozenset({"aten.scaled_dot_product_attention.default"})
    exact_strides = True
    """Its blocks hand out exactly the strides of ``val``."""
    pickles = True
    """What ``dump`` writes is read as a pickle."""
    follows_modes = True
    """It traces a block in the autocast region that is on while it compiles."""

    cache_option = "cache_dir"
    """Its own option for the folder of its caches."""
    caches = True
    """What one process compiles, the next one finds on disk."""

    def available(self) -> str | None:
        """Return ``None``: Inductor is part of PyTorch.

        Whether there is a C++ compiler or Triton shows when the first block is compiled; without
        one, blocks go to the next backend with that message.
        """
        return None

    def verdict(self, node: Node) -> Verdict:
        """Return yes for every op that ``standalone_compile`` compiles, else no with the reason."""
        refused = _refusal(node)
        return _YES if refused is None else Verdict(self.name, False, *refused)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Check that every option is a setting of ``torch._inductor.config``, or ``cache_dir``.

        Raises:
            OptionError: One is not; the nearest legal one is named.
        """
        if not options:
            return
        from torch._inductor import config

        legal = [self.cache_option, *config.get_config_copy()]
        for key in options:
            if key not in legal:
                raise OptionError(f"Inductor has no setting {key!r}" + nearest(key, legal))

    def warm_up(self) -> None:
        """Import what compiling needs, so that child processes find it imported."""
        import torch._inductor.compile_fx
        import torch._inductor.standalone_compile  # noqa: F401

    def compile(
        self, block: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> CompiledBlock:
        """Compile the block; ``boxed`` of the result takes one list, which it empties.

        Args:
            block: As in the protocol; weights are inputs, the output is a flat tuple.
            inputs: Fake tensors and symbolic scalars, one a placeholder.
            options: Settings of ``torch._inductor.config`` for this block, and ``cache_dir``.
        """
        from torch._inductor import standalone_compile

        settings = {key: value for key, value in options.items() if key != self.cache_option}
        with _cached_in(options.get(self.cache_option)):
            artifact = standalone_compile(
                block, list(inputs), dynamic_shapes="from_graph", aot=True,
                donate_graph_module=True,
                options={"config_patches": settings} if settings else {},
            )  # fmt: skip
        return InductorCode(artifact)

    def dump(self, made: CompiledBlock) -> bytes:
        """Return a compiled block as bytes for :meth:`restore`.

        Raises:
            Exception: Inductor cannot write it; blocks with control flow are such.
        """
        from hierpart.backends.inductor_code import dump

        return dump(getattr(made, "artifact", None))

    def restore(self, data: bytes, block: GraphModule) -> CompiledBlock:
        """Return the compiled block that :meth:`dump` wrote; the bytes are read as a pickle."""
        from hierpart.backends.inductor_code import restore

        return InductorCode(restore(data))

    def fingerprint(self) -> str:
        """Return the versions of PyTorch and, where there is a GPU, of CUDA and its devices."""
        parts = [self.name, f"torch={torch.__version__}", f"cuda={torch.version.cuda}"]
        if torch.cuda.is_available():
            count = torch.cuda.device_count()
            parts += [torch.cuda.get_device_name(i) for i in range(count)]
        return " ".join(parts)


def _cached_in(folder: str | None) -> AbstractContextManager[None]:
    """Let Inductor keep its caches in ``folder``; while it does, so do other threads."""
    if folder is None:
        return nullcontext()
    from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir

    return temporary_cache_dir(folder)


class InductorCode:
    """A compiled block.

    Args:
        artifact: What ``standalone_compile`` returned.

    Attributes:
        artifact: The same.
        boxed: Takes one list, which it empties.
    """

    def __init__(self, artifact: Any) -> None:
        self.artifact = artifact
        self.boxed = boxed_entry(artifact) or _boxed(artifact)

    def __call__(self, *args: Any) -> Any:
        """Run once."""
        return self.boxed(list(args))


def boxed_entry(artifact: Any) -> CompiledBlock | None:
    """Return the artifact's own function of one list, or ``None`` where this torch hides it.

    Called with positional arguments, an artifact keeps all of its inputs alive until it returns
    and costs about three times the calls; its innermost runtime wrapper takes a list and empties
    it. Private: the closure of ``aot_module_simplified`` in ``torch._functorch``.
    """
    function = getattr(getattr(artifact, "inner_fn", None), "compiled_fn", None)
    while function is not None:
        if inspect.isfunction(function):
            held = inspect.getclosurevars(function).nonlocals
            inner = held.get("compiled_fn")
            if held.get("params_buffers_flat", ...) == [] and getattr(inner, "_boxed_call", False):
                found: CompiledBlock | None = inner
                return found
        function = getattr(function, "__wrapped__", None)
    return None


def _boxed(artifact: Any) -> CompiledBlock:
    def run(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        return artifact(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _refusal(node: Node) -> tuple[Reason, str] | None:
    target = node.target
    if node.op == "call_module":
        return Reason.NOT_LISTED, "a called module; capture it with torch.export"
    if isinstance(target, torch._ops.HigherOrderOperator):
        refused = _higher_order_refusal(node, str(target))
    elif isinstance(target, torch._ops.OpOverload):
        refused = _overload_refusal(target)
    else:
        refused = _function_refusal(node)
    return refused or _value_refusal(node)


def _overload_refusal(op: torch._ops.OpOverload) -> tuple[Reason, str] | None:
    if op._schema.is_mutable:
        return Reason.MUTATES, str(op)
    name = op._schema.name.split("::")[-1]
    if name in EFFECTS or op.namespace == "profiler":
        return Reason.EFFECT, str(op)
    return None


def _function_refusal(node: Node) -> tuple[Reason, str] | None:
    """Refuse functions that are not PyTorch's or Python's own: they may do anything."""
    home = getattr(node.target, "__module__", None) or ""
    if node.op == "call_method" or home.split(".")[0] in PURE_HOMES:
        return None
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        return None
    return Reason.NOT_LISTED, f"function of {home or 'unknown origin'}"


def _higher_order_refusal(node: Node, name: str) -> tuple[Reason, str] | None:
    if name in EFFECTS:
        return Reason.EFFECT, name
    writes = name in WRAPPERS
    if writes:
        inner = node.args[0] if node.args else None
        if isinstance(inner, torch._ops.OpOverload):
            return None
        if str(inner) not in CONTROL_FLOW:
            return Reason.CONTROL_FLOW, f"{name} around {inner}"
    elif name not in CONTROL_FLOW:
        return Reason.CONTROL_FLOW, f"{name} is not among the ops that Inductor compiles by itself"
    owner = node.graph.owning_module
    for source in node.all_input_nodes:
        if source.op != "get_attr" or owner is None:
            continue
        body = resolve_attribute(owner, str(source.target))
        refused = _body_refusal(body, writes) if isinstance(body, GraphModule) else None
        if refused:
            return Reason.CONTROL_FLOW, f"in {source.target}: {refused[1] or refused[0].value}"
    return None


def _body_refusal(body: GraphModule, writes: bool) -> tuple[Reason, str] | None:
    """Return why a branch cannot be compiled with its op, if so; its operands are its own."""
    for node in body.graph.nodes:
        if writes and _writes_an_operand(node):
            continue
        if node.op == "get_attr":
            value = resolve_attribute(body, str(node.target))
            if isinstance(value, torch.Tensor):
                return Reason.CONTROL_FLOW, f"the tensor {node.target} is not an operand"
        if node.op.startswith("call_"):
            refused = _refusal(node)
            if refused:
                return refused[0], f"{node.name}: {refused[1] or refused[0].value}"
    return None


def _writes_an_operand(node: Node) -> bool:
    """Whether the node is the ``copy_`` into a placeholder that functionalisation leaves."""
    copies = node.op == "call_function" and node.target is torch.ops.aten.copy_.default
    return copies and isinstance(node.args[0], Node) and node.args[0].op == "placeholder"


def _value_refusal(node: Node) -> tuple[Reason, str] | None:
    """Refuse nodes without metadata and values that Inductor has no code for."""
    if not has_value(node) and not _returns_nothing(node):
        return Reason.NO_METADATA, ""
    for source in (node, *node.all_input_nodes):
        if source is not node and source.op == "get_attr" and not has_value(source):
            continue
        if source is not node and not has_value(source):
            return Reason.NO_METADATA, f"of its input {source.name}"
        refused = _layout_refusal(value_of(source)) if has_value(source) else None
        if refused:
            return refused
    return None


def _returns_nothing(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns


def _layout_refusal(value: Any) -> tuple[Reason, str] | None:
    if isinstance(value, (tuple, list)):
        return next((r for r in map(_layout_refusal, value) if r), None)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return Reason.LAYOUT, str(value.layout)
        if value.dtype in QUANTISED:
            return Reason.LAYOUT, f"quantised, {value.dtype}"
        if torch.utils._python_dispatch.is_traceable_wrapper_subclass(value):
            return Reason.LAYOUT, f"tensor subclass {type(value).__name__}"
        if value.device.type not in DEVICES:
            return Reason.LAYOUT, f"device {value.device.type}"
        return None
    plain = (bool, int, float, complex, str, type(None), *SYMBOLIC, torch.dtype, torch.device)
    return None if isinstance(value, plain) else (Reason.NON_TENSOR_BOUNDARY, type(value).__name__)
