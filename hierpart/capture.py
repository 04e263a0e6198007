"""From whatever the user has to the one form of graph that the line splits.

``torch.export`` gives the lifted functional graph: parameters and buffers are placeholders, writes
are extra outputs, every node has ``meta["val"]``. A raw GraphModule is taken as it is, after its
values have been recorded on a copy where example inputs make that possible.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from hierpart.backends import Backend, entry_point_backends, get_backend
from hierpart.errors import InputTypeError
from hierpart.literals import lift_literals
from hierpart.options import Options
from hierpart.values import has_value

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_log = logging.getLogger("hierpart")


@dataclass(frozen=True)
class Captured:
    """A graph to split and where it came from.

    Attributes:
        graph: The graph; the caller's own where a GraphModule was passed that needed nothing.
        program: The exported program whose lifted graph it is, if it is one.
        notes: What a user should know about the capture, one sentence each.
    """

    graph: GraphModule
    program: ExportedProgram | None = None
    notes: tuple[str, ...] = ()


def capture(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    options: Options,
) -> Captured:
    """Return the graph of ``model``.

    Args:
        model: An ``nn.Module``, in the mode (``train`` or ``eval``) that is to be captured; an
            ``ExportedProgram``; or a GraphModule.
        args: Example positional inputs of a module.
        kwargs: Example keyword inputs of a module.
        dynamic_shapes: As for ``torch.export.export``.
        options: ``decompositions`` and the backends' ``keep_ops`` say how far to decompose.

    Raises:
        InputTypeError: ``model`` is something else; the message says what to call.
    """
    if isinstance(model, GraphModule):
        return _captured_graph_module(model, args, kwargs or {})
    program = lift_literals(_exported(model, args, kwargs or {}, dynamic_shapes))
    try:
        with torch.no_grad():
            lifted = program.run_decompositions(_export_table(options))
    except Exception as error:  # torch's own passes over any graph; the program itself is fine
        _log.debug("decomposing failed", exc_info=True)
        return Captured(program.module(), notes=(
            f"The exported program could not be made functional ({_one_line(error)}), so its "
            "module was split as it is.",
        ))  # fmt: skip
    return Captured(lifted.graph_module, lifted)


def aot_decompositions(options: Options) -> dict[Any, Callable[..., Any]]:
    """Return the decomposition table of the ``torch.compile`` way in."""
    if options.decompositions == "minimal":
        return {}
    from torch._decomp import core_aten_decompositions

    kept = kept_ops(options)
    table: Any = core_aten_decompositions()
    return {op: function for op, function in table.items() if op_name(op) not in kept}


def kept_ops(options: Options) -> frozenset[str]:
    """Return the ops that some backend takes whole and capture must not decompose."""
    backends = (backend_named(name, options) for name in options.backend_priority)
    names = (name for backend in backends if backend is not None for name in backend.keep_ops)
    return frozenset(name.removeprefix("torch.ops.") for name in names)


def backend_named(name: str, options: Options) -> Backend | None:
    """Return the backend object of that name: the user's own, else the registered one, if any.

    A backend whose answers depend on its own options (it has ``configured``) is returned with them.
    """
    given = (options.backend_support_map or {}).get(name)
    if not isinstance(given, Backend):
        given = get_backend(name) if name in entry_point_backends() else None
    own, configure = own_options(name, given, options), getattr(given, "configured", None)
    if own and configure is not None:
        configured: Backend = configure(own)
        return configured
    return given


def own_options(name: str, backend: Backend | None, options: Options) -> Mapping[str, Any]:
    """Return a backend's own options; ``cache_dir`` gives it a folder unless it has one."""
    own, folder = options.options_of(name), getattr(backend, "cache_option", None)
    if options.cache_dir is None or folder is None or folder in own:
        return own
    return {**own, folder: str(Path(options.cache_dir, name))}


def fixed_weights(program: ExportedProgram | None) -> dict[str, torch.Tensor]:
    """Return the parameters, buffers and constants that the program never writes.

    By name of the placeholder in its lifted graph.
    """
    if program is None:
        return {}
    from torch.export.graph_signature import InputKind, OutputKind

    held = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    mutations = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
    signature = program.graph_signature
    written = {s.target for s in signature.output_specs if s.kind in mutations}
    values = {**program.constants, **program.state_dict}
    return {
        spec.arg.name: values[spec.target]
        for spec in signature.input_specs
        if spec.kind in held and spec.target not in written
    }


def op_name(op: Any) -> str:
    """Return an operator's qualified name, ``aten.add.Tensor``."""
    return str(op).removeprefix("torch.ops.")


def _exported(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    from torch.export import ExportedProgram, export

    if isinstance(model, ExportedProgram):
        return model
    if not isinstance(model, torch.nn.Module):
        raise InputTypeError(
            f"hierpart.compile takes an nn.Module, an ExportedProgram or a GraphModule, not "
            f"{type(model).__name__}; for a function call torch.compile(f, backend='hierpart')"
        )
    with torch.no_grad():
        return export(model, tuple(args), dict(kwargs), dynamic_shapes=dynamic_shapes, strict=False)


def _export_table(options: Options) -> Any:
    if options.decompositions == "minimal":
        return {}
    from torch.export import default_decompositions

    kept = kept_ops(options)
    table: Any = default_decompositions()
    for op in [op for op in table if op_name(op) in kept]:
        table.pop(op)
    return table


def _captured_graph_module(
    module: GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Captured:
    nodes = [n for n in module.graph.nodes if n.op != "get_attr" and n.users]
    if all(has_value(n) for n in nodes):
        return Captured(module)
    if not (args or kwargs) and module.graph.find_nodes(op="placeholder"):
        return Captured(module, notes=(
            "The graph has no meta['val'] and no example inputs were given, so backends that need "
            "shapes refused its nodes: pass args.",
        ))  # fmt: skip
    copied = GraphModule(module, copy.deepcopy(module.graph))
    try:
        _record_values(copied, args, kwargs)
    except Exception as error:  # the model's own code runs here, on fakes, and may raise anything
        _log.debug("no shapes could be recorded", exc_info=True)
        return Captured(module, notes=(
            f"No shapes could be recorded from the example inputs ({_one_line(error)}), so "
            "backends that need shapes refused the nodes without meta['val'].",
        ))  # fmt: skip
    return Captured(copied)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _record_values(module: GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Record ``meta['val']`` on every node by running the graph on fake tensors.

    The module's own tensors are faked too: in a fake mode, in-place ops still reach real tensors.
    """
    from torch._subclasses import FakeTensorMode
    from torch.func import functional_call
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    mode = FakeTensorMode(allow_non_fake_inputs=True)

    class Recorder(FakeTensorProp):
        def fetch_attr(self, target: str) -> Any:
            value = super().fetch_attr(target)
            return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            called = super().fetch_attr(str(target))
            tensors = dict(called.named_parameters()) | dict(called.named_buffers())
            fakes: Any = {name: mode.from_tensor(tensor) for name, tensor in tensors.items()}
            return functional_call(called, fakes, args, kwargs)

    with torch.no_grad(), mode:
        Recorder(module, mode).propagate(*flat_arguments(module, args, kwargs))


def flat_arguments(
    module: GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the values of the placeholders for a call of ``module``.

    Raises:
        TypeError: An argument that has no default is missing.
    """
    in_spec = getattr(module, "_in_spec", None)
    if in_spec is not None:
        leaves: list[Any] = pytree.tree_leaves((tuple(args), dict(kwargs)))
        return leaves
    given, named = list(args), dict(kwargs)
    values: list[Any] = []
    for node in module.graph.find_nodes(op="placeholder"):
        name = str(node.target)
        if name.startswith("**"):
            values.append(named)
        elif name.startswith("*"):
            values.append(tuple(given))
            given = []
        elif given:
            values.append(given.pop(0))
        elif name in named:
            values.append(named.pop(name))
        elif node.args:
            values.append(node.args[0])
        else:
            raise TypeError(f"no value was given for the argument {name!r}")
    return values
