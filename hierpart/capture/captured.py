"""From whatever the user has to the one form of graph that the line splits.

``torch.export`` gives the lifted functional graph: parameters and buffers are placeholders, writes
are extra outputs, every node has ``meta["val"]``. A raw GraphModule is taken as it is, after its
values have been recorded on a copy where example inputs make that possible.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from hierpart.capture.decompositions import export_decompositions
from hierpart.errors import InputTypeError
from hierpart.graph import has_value, lift_literals
from hierpart.options import Options

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
            lifted = program.run_decompositions(export_decompositions(options))
    except Exception as error:  # torch's own passes over any graph; the program itself is fine
        _log.debug("decomposing failed", exc_info=True)
        return Captured(program.module(), notes=(
            f"The exported program could not be made functional ({_one_line(error)}), so its "
            "module was split as it is.",
        ))  # fmt: skip
    return Captured(lifted.graph_module, lifted)


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
