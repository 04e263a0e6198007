"""The public functions: they compose the steps and hold no logic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.assign import BackendOpSupportTester
from hierpart.errors import InputTypeError
from hierpart.line import run_line
from hierpart.options import DEFAULT_MIN_BLOCK_SIZE, Options, default_priority
from hierpart.plan import Plan


def hierarchical_adjacency_partition(
    gm: GraphModule,
    min_block_size: int | Mapping[str, int] = DEFAULT_MIN_BLOCK_SIZE,
    torch_executed_ops: Collection[Any] = (),
    backend_support_map: Mapping[str, Any] | None = None,
    backend_priority: Sequence[str] | None = None,
    require_full_compilation: bool = False,
    skip_fusion: bool = False,
    *,
    allowed_single_node_partition_ops: Collection[Any] = (),
    demote: str = "cascade",
    exclude_nodes: Collection[str] = (),
    exclude_modules: Collection[str] = (),
    exclude: Callable[[Node], bool] | None = None,
    control_flow: Mapping[str, str] | None = None,
) -> tuple[GraphModule, BackendOpSupportTester]:
    """Split a graph into blocks by backend priority.

    Args:
        gm: The module to split, from ``torch.export`` (``ep.module()``), Dynamo or
            ``symbolic_trace``. It is not changed and can be split again; so can the result.
        min_block_size: Fewest compute ops of an accelerated block; one number or one a backend.
        torch_executed_ops: Ops that run eagerly: overloads, packets (all overloads), functions,
            ``nn.Module`` types, or names of these.
        backend_support_map: Per backend a collection of ops, an ``OperatorSupportBase`` or a
            backend object. A backend that is not named answers for itself.
        backend_priority: Backends, best first. Default: the keys' order of
            ``("tensorrt", "inductor")``, or ``HIERPART_PRIORITY``.
        require_full_compilation: Raise when a compute op has to run eagerly; no minimum applies.
        skip_fusion: Accepted for compatibility; has no effect.
        allowed_single_node_partition_ops: Ops whose block may be under the minimum.
        demote: Where undersized blocks go: ``"cascade"`` (next backend) or ``"eager"``.
        exclude_nodes: Names of nodes that run eagerly.
        exclude_modules: Qualified names of modules whose ops run eagerly.
        exclude: Predicate on nodes that run eagerly.
        control_flow: Mode of each higher-order op; see :class:`hierpart.Options`.

    Returns:
        The split module and the tester that decided. Blocks are submodules named
        ``_run_on_acc_<backend>_<i>`` and ``_run_on_gpu_<i>`` (eager), each with its placeholders
        first and a flat tuple as output; ``module.meta["hierpart"]`` is the :class:`Plan`.

    Raises:
        InputTypeError: ``gm`` is no GraphModule; the message says what to call.
        OptionError: An option names something that does not exist or has an illegal value.
        FullCompilationError: Full compilation was required and is not possible.
    """
    options = _options(
        backend_priority,
        backend_support_map,
        min_block_size=min_block_size,
        torch_executed_ops=torch_executed_ops,
        require_full_compilation=require_full_compilation,
        skip_fusion=skip_fusion,
        allowed_single_node_partition_ops=allowed_single_node_partition_ops,
        demote=demote,
        exclude_nodes=exclude_nodes,
        exclude_modules=exclude_modules,
        exclude=exclude,
        control_flow=dict(control_flow or {}),
    )
    result = run_line(check_module(gm), options)
    _report(result.plan)
    return result.split(), result.tester


def make_plan(gm: GraphModule, **options: Any) -> Plan:
    """Return the plan for a graph without splitting it; options as in :class:`hierpart.Options`."""
    return run_line(check_module(gm), Options.from_mapping(options)).plan


def _options(
    priority: Sequence[str] | None, support: Mapping[str, Any] | None, **fields: Any
) -> Options:
    if priority is None:
        named = tuple(support or ())
        default = default_priority()
        priority = default if set(named) <= set(default) else named
    return Options.from_mapping(
        {"backend_priority": tuple(priority), "backend_support_map": support, **fields}
    )


def check_module(gm: Any) -> GraphModule:
    """Return ``gm`` if it is a GraphModule.

    Raises:
        InputTypeError: It is something else; the message says what to call.
    """
    if isinstance(gm, GraphModule):
        return gm
    if isinstance(gm, torch.export.ExportedProgram):
        hint = "pass exported_program.module(), or call hierpart.compile(exported_program)"
    elif isinstance(gm, torch.nn.Module):
        hint = (
            "pass torch.export.export(model, args).module() or torch.fx.symbolic_trace(model), or "
            "call hierpart.compile(model, args)"
        )
    else:
        hint = "pass a torch.fx.GraphModule"
    raise InputTypeError(f"expected a torch.fx.GraphModule, got {type(gm).__name__}: {hint}")


def _report(plan: Plan) -> None:
    from hierpart.report import log_plan

    log_plan(plan)
