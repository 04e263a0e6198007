"""The splitter class: torch's ``_SplitterBase`` with every decision taken by the line of steps."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.splitter_base import SplitResult, _SplitterBase
from torch.fx.passes.splitter_base import Subgraph as _Subgraph

from hierpart.errors import HierpartError, OptionError
from hierpart.options import DEFAULT_MIN_BLOCK_SIZE, Options, default_priority
from hierpart.partition.owners.tester import BackendOpSupportTester
from hierpart.partition.pipeline import Result, run_line
from hierpart.partition.splitting.parent_module import EAGER_PREFIX, check_module
from hierpart.plan import EAGER, Plan


@dataclass
class Subgraph(_Subgraph):
    """Nodes of one block, as torch's splitters hand them about, with the block's backend."""

    backend: str = EAGER


@dataclass(frozen=True, slots=True)
class SplitterSettings:
    """What ``_SplitterBase`` reads of its settings; torch's own class parses ``sys.argv``."""

    min_acc_module_size: int = DEFAULT_MIN_BLOCK_SIZE
    skip_fusion: bool = False
    allow_non_tensor: bool = True
    max_acc_splits: int = -1
    move_non_tensor_nodes_on_boundary: bool = False


class HierarchicalAdjacencyPartitioner(_SplitterBase):
    """Splits a module by backend priority; code written against torch's splitters can drive it.

    The base class's fields are set without running the graph: no example inputs are needed, nothing
    is printed, the command line is not read, and nodes get no attributes.

    Args:
        module: The module to split; not changed.
        operator_support: A :class:`BackendOpSupportTester`, whose backends and priority are used,
            or another ``OperatorSupportBase``, which then speaks for the first backend.
        backend_support_map: What each backend supports; see :class:`hierpart.Options`.
        backend_priority: Backends, best first.
        allowed_single_node_partition_ops: Ops whose block may be under the minimum.
        min_block_size: Fewest compute ops of an accelerated block.
        require_full_compilation: Raise when a compute op has to run eagerly.
        return_tuple: Accepted for compatibility; blocks always return a tuple.
        skip_fusion: Accepted for compatibility; has no effect.
        sample_input: Example inputs, only for :meth:`generate_split_results`.
        options: Further fields of :class:`hierpart.Options`.

    Raises:
        InputTypeError: ``module`` is no GraphModule.
        OptionError: An option does not fit.
    """

    def __init__(
        self,
        module: GraphModule,
        operator_support: OperatorSupportBase | None = None,
        backend_support_map: Mapping[str, Any] | None = None,
        backend_priority: Sequence[str] | None = None,
        allowed_single_node_partition_ops: Collection[Any] | None = None,
        min_block_size: int | Mapping[str, int] = DEFAULT_MIN_BLOCK_SIZE,
        require_full_compilation: bool = False,
        return_tuple: bool = True,
        skip_fusion: bool = False,
        sample_input: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        # The base's own __init__ runs the module and prints; its fields are set here instead.
        self.module = check_module(module)
        support = dict(backend_support_map or {})
        priority = tuple(backend_priority or default_priority())
        if isinstance(operator_support, BackendOpSupportTester):
            support = operator_support.backend_support_map
            priority = operator_support.backend_priority
            options.setdefault("torch_executed_ops", operator_support.torch_executed_ops)
        elif operator_support is not None:
            support.setdefault(priority[0], operator_support)
        self.options = Options(
            backend_priority=priority,
            backend_support_map=support or None,
            allowed_single_node_partition_ops=tuple(allowed_single_node_partition_ops or ()),
            min_block_size=min_block_size,
            require_full_compilation=require_full_compilation,
            skip_fusion=skip_fusion,
            **options,
        )
        self._result: Result = run_line(self.module, self.options)
        self.operator_support = self._result.tester
        self.settings = SplitterSettings(  # type: ignore[assignment]
            min((self.options.size_of(b) for b in priority), default=0), skip_fusion
        )
        self.sample_input = tuple(sample_input)
        owner = self.plan.owner
        self.acc_nodes = {n for n in self._result.facts.nodes if owner[n.name] != EAGER}
        self.fusions: dict[Node, set[Node]] = {}
        self.deps = self.find_deps()
        self.non_acc_submodule_name = EAGER_PREFIX
        self._node_submodule_map: dict[str, str] = {}
        self._return_tuple = True
        self.tags: list[str] = []
        self.num_accelerated_subgraphs: int | None = None

    @property
    def plan(self) -> Plan:
        """The plan that the split follows."""
        return self._result.plan

    def put_nodes_into_subgraphs(self) -> list[_Subgraph]:
        """Return the fewest blocks for the owners, before any block is found too small."""
        return self._subgraphs(self._result.clustered)

    def remove_small_acc_subgraphs(self, subgraphs: Sequence[_Subgraph]) -> list[_Subgraph]:
        """Return the plan's blocks: undersized ones have gone to their next backend.

        Raises:
            HierpartError: ``subgraphs`` are not those of :meth:`put_nodes_into_subgraphs`.
        """
        given = [[n.name for n in s.nodes] for s in subgraphs]
        if given != [list(names) for _, names in self._result.clustered]:
            raise HierpartError(
                "these are not the subgraphs of put_nodes_into_subgraphs(); to keep nodes off a "
                "backend pass exclude=, exclude_nodes= or torch_executed_ops= instead"
            )
        final = self._subgraphs([(b.backend, b.nodes) for b in self.plan.blocks])
        self.num_accelerated_subgraphs = sum(s.is_acc for s in final)
        return final

    def _subgraphs(self, blocks: Sequence[tuple[str, Sequence[str]]]) -> list[_Subgraph]:
        nodes = {n.name: n for n in self._result.facts.nodes}
        return [
            Subgraph(is_acc=backend != EAGER, nodes=[nodes[n] for n in names], backend=backend)
            for backend, names in blocks
        ]

    def tag(self, subgraphs: Sequence[_Subgraph]) -> None:
        """Record the submodule of each node; see ``get_node_submodule_map``. No node is touched.

        Raises:
            HierpartError: ``subgraphs`` are not the plan's blocks.
        """
        if [[n.name for n in s.nodes] for s in subgraphs] != [list(b.nodes) for b in self.plan]:
            raise HierpartError("tag() takes what remove_small_acc_subgraphs() returned")
        self.tags = [b.name for b in self.plan.blocks]
        self._node_submodule_map = {n: b.name for b in self.plan.blocks for n in b.nodes}

    def split(self, remove_tag: bool = False) -> GraphModule:
        """Return the split module; the module that was given is not changed."""
        return self._result.split()

    def partition_graph(self) -> GraphModule:
        """Return the split module, all steps taken."""
        self.tag(self.remove_small_acc_subgraphs(self.put_nodes_into_subgraphs()))
        return self.split()

    def __call__(self) -> GraphModule:
        """Return the split module, all steps taken."""
        return self.partition_graph()

    def node_support_preview(self, dump_graph: bool = False) -> str:
        """Return which ops are supported, as the base class words it; nothing is printed."""
        with contextlib.redirect_stdout(io.StringIO()):
            return super().node_support_preview(dump_graph)

    def split_preview(self, dump_graph: bool = False) -> str:
        """Return the plan as text. Unlike the base class this runs and lowers nothing."""
        return str(self.plan)

    def generate_split_results(self) -> SplitResult:
        """Return the split module with the inputs of each block, by running ``sample_input``.

        Raises:
            OptionError: No ``sample_input`` was given.
        """
        if not self.sample_input:
            raise OptionError("generate_split_results() runs the module: pass sample_input=(...)")
        return super().generate_split_results()

    def _lower_model_to_backend(self, mod: GraphModule, inputs: Any) -> Any:
        raise OptionError("this splitter does not compile; call hierpart.compile(model, args)")
