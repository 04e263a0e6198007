"""The public functions: they compose the steps and hold no logic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule, Node

from hierpart.options import DEFAULT_MIN_BLOCK_SIZE, Options, default_priority
from hierpart.partition import BackendOpSupportTester, check_module, collector_paused, run_line
from hierpart.plan import Plan
from hierpart.report import Report, log_plan

if TYPE_CHECKING:
    from hierpart.runtime import CompiledModule


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
        backend_priority: Backends, best first. Default: ``("tensorrt", "inductor")``, or what the
            environment variable ``HIERPART_PRIORITY`` lists.
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
    with collector_paused():
        return _split(check_module(gm), options)


def _split(gm: GraphModule, options: Options) -> tuple[GraphModule, BackendOpSupportTester]:
    result = run_line(gm, options)
    log_plan(result.plan)
    return result.split(), result.tester


def make_plan(gm: GraphModule, **options: Any) -> Plan:
    """Return the plan for a graph without splitting it; options as in :class:`hierpart.Options`."""
    return run_line(check_module(gm), Options.from_mapping(options)).plan


def compile(  # noqa: A001 - the field's name for it
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    backend_priority: Sequence[str] | None = None,
    backend_support_map: Mapping[str, Any] | None = None,
    min_block_size: int | Mapping[str, int] = DEFAULT_MIN_BLOCK_SIZE,
    torch_executed_ops: Collection[Any] = (),
    fallback: bool = True,
    strict: bool = False,
    check: bool = False,
    options: Mapping[str, Any] | None = None,
) -> CompiledModule:
    """Capture, split and compile a model for inference.

    Args:
        model: An ``nn.Module`` in the mode that is to be captured, an ``ExportedProgram`` or a
            ``GraphModule``.
        args: Example positional inputs of a module.
        kwargs: Example keyword inputs of a module.
        dynamic_shapes: As for ``torch.export.export``.
        backend_priority: Backends, best first.
        backend_support_map: What each backend supports; a backend not named answers for itself.
        min_block_size: Fewest compute ops of an accelerated block.
        torch_executed_ops: Ops that run eagerly.
        fallback: A block that fails goes to the next backend; ``False`` means ``strict=True``.
        strict: The first block that fails raises.
        check: Each compiled block is compared with eager on inputs made for it; one that does not
            agree counts as failed.
        options: The backends' own options by backend name, as
            ``{"inductor": {"max_autotune": True}}``, and further fields of
            :class:`hierpart.Options`; these win.

    Returns:
        A module that is called like the model, with ``.plan`` and ``.report``.

    Raises:
        InputTypeError: ``model`` is none of these.
        OptionError: An option does not fit; the nearest legal one is named.
        BackendCompileError: A block failed and ``strict`` is on.
    """
    from hierpart.build import compile_model

    named = {
        "min_block_size": min_block_size, "torch_executed_ops": torch_executed_ops,
        "fallback": fallback, "strict": strict, "check": check,
    }  # fmt: skip
    settled = _options(backend_priority, backend_support_map, **named | dict(options or {}))
    return compile_model(model, args, kwargs, dynamic_shapes=dynamic_shapes, options=settled)


def explain(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    backend_priority: Sequence[str] | None = None,
    backend_support_map: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Report:
    """Plan a model without compiling it; print the result to read it.

    Args:
        model: As for :func:`compile`.
        args: As for :func:`compile`.
        kwargs: As for :func:`compile`.
        dynamic_shapes: As for :func:`compile`.
        backend_priority: Backends, best first.
        backend_support_map: What each backend supports.
        options: As for :func:`compile`.
        **fields: Further fields of :class:`hierpart.Options`, as ``min_block_size=1``.

    Raises:
        InputTypeError: ``model`` is none of these.
        OptionError: An option does not fit.
        FullCompilationError: Full compilation was required and is not possible.
    """
    from hierpart.report import explain as explain_plan

    settled = _options(backend_priority, backend_support_map, **fields, **(options or {}))
    return explain_plan(model, args, kwargs, dynamic_shapes=dynamic_shapes, options=settled)


def load(path: Any, *, device: Any = None, allow_pickle: bool = False) -> CompiledModule:
    """Return the module that ``compiled.save`` wrote.

    Args:
        path: The file.
        device: Where the model is to run, as ``"cuda"`` for one that was compiled on a machine
            without a GPU; ``None``: where it was.
        allow_pickle: Whether to read pickles, which can run any code: needed for Inductor's
            compiled blocks (else compiled again) and for weights that are tensor subclasses.

    Raises:
        ArtefactError: The file is damaged, incomplete, or of other versions; nothing is loaded.
    """
    from hierpart.build import load_module

    return load_module(Path(path), device, allow_pickle)


def _options(
    priority: Sequence[str] | None, support: Mapping[str, Any] | None, **fields: Any
) -> Options:
    if priority is None:
        priority = default_priority()
    return Options.from_mapping(
        {"backend_priority": tuple(priority), "backend_support_map": support, **fields}
    )
