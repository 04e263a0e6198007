"""The module that runs compiled blocks: owns the weights, checks inputs, writes back updates."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from hierpart.calling import ExportCall, GraphCall
from hierpart.effects import resolve_attribute
from hierpart.flat import Flat
from hierpart.inputs import InputMismatchError, TensorSpec, mismatch
from hierpart.report import Report
from hierpart.strides import same_layout

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from hierpart.plan import Plan


class Watch:
    """Whether a tensor of a compiled module may have been replaced since it was last checked."""

    def __init__(self) -> None:
        self.stale = True


class Part(nn.Module):
    """Holds the tensors of one submodule of the original model under their original names."""

    _watch: Watch

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.__dict__["_watch"] = watch

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self._watch.stale = True

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._watch.stale = True
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


class CompiledModule(Part):
    """A compiled model: called like the model, for inference, in the mode that was captured.

    Parameters and buffers are the model's own tensors under their original names: ``state_dict``,
    ``load_state_dict``, ``named_parameters`` and in-place updates work as on the model, and what
    changes here changes there. ``train()`` and ``eval()`` have no effect on what was captured.
    No gradients are recorded. ``copy.deepcopy`` copies the tensors and shares the compiled code.

    Attributes:
        report: What ran where and why, with one outcome a block.
    """

    report: Report
    _flat: Flat
    _root: SimpleNamespace
    _constants: dict[str, Any]
    _names: tuple[str, ...]
    _wanted: tuple[TensorSpec | None, ...]
    _slots: tuple[tuple[dict[str, Any], str], ...]
    _call: Any

    def __init__(self, flat: Flat, report: Report) -> None:
        super().__init__(Watch())
        self.__dict__.update(
            report=report, _flat=flat, _root=flat.root, _constants={}, _slots=(), _wanted=(),
            _call=None,
        )  # fmt: skip

    @classmethod
    def of_program(cls, program: ExportedProgram, flat: Flat, report: Report) -> CompiledModule:
        """Return the module for an exported program whose lifted graph was compiled."""
        module = cls(flat, report)
        call = ExportCall.of(program)
        for name, value in program.state_dict.items():
            module._own(name, value)
        for name, value in call.unsaved.items():
            module._own(name, value, persistent=False)
        module._constants.update(call.constants)
        names = (*flat.attributes, *call.state)
        module._constants.update(
            {n: resolve_attribute(program.graph_module, n) for n in flat.attributes}
        )
        values = [module._constants[n] for n in flat.attributes] + call.values_of(program)
        module._bind(names, values, call)
        return module

    @classmethod
    def of_graph(
        cls, graph: GraphModule, parent: GraphModule, flat: Flat, report: Report
    ) -> CompiledModule:
        """Return the module for a raw GraphModule; it is called as that module is."""
        module = cls(flat, report)
        for node in graph.graph.nodes:
            if node.op == "call_module":
                module._adopt(str(node.target), graph.get_submodule(str(node.target)))
        for name, value in _tensors_of(graph):
            path, _, last = name.rpartition(".")
            owner = graph.get_submodule(path)
            module._own(name, value, last not in owner._non_persistent_buffers_set)
        for name in flat.attributes:
            if module._home(name) is None:
                module._constants[name] = resolve_attribute(graph, name)
        checked = any(outcome.backend != "eager" for outcome in report.outcomes)
        call = GraphCall(parent, checked)
        module._bind(flat.attributes, _recorded(graph, flat.attributes), call)
        return module

    @property
    def plan(self) -> Plan:
        """The plan that was compiled."""
        return self.report.plan

    @property
    def code(self) -> str:
        """Source of the function that runs the blocks."""
        return self._flat.code

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled model.

        Raises:
            InputMismatchError: An input, or a weight after ``.to()`` or an assignment, is not what
                the blocks were compiled for.
        """
        if self._watch.stale:
            self._check_tensors()
        with torch.no_grad():
            if torch._C._is_any_autocast_enabled():  # casts are in the graph already
                with torch._C._DisableAutocast():
                    return self._call(self, args, kwargs)
            return self._call(self, args, kwargs)

    def run_flat(self, values: Sequence[Any]) -> Any:
        """Run on the values of the graph's inputs; the module's own tensors are put before them."""
        args = [home[name] for home, name in self._slots]
        args.extend(values)
        return self._flat.function(self._root, args)

    def tensor(self, name: str) -> Any:
        """Return the tensor or constant that the graph knows by its original qualified name."""
        home = self._home(name)
        return self._constants[name] if home is None else home[name.rpartition(".")[2]]

    def extra_repr(self) -> str:
        """Return what ran where, in one line."""
        return self.report.summary()

    def _own(self, name: str, value: Any, persistent: bool = True) -> None:
        path, _, last = name.rpartition(".")
        part = self._part(path)
        if not isinstance(part, Part):
            return  # a tensor of a module that was adopted whole
        if isinstance(value, nn.Parameter):
            part._parameters[last] = value
            return
        part._buffers[last] = value
        if not persistent:
            part._non_persistent_buffers_set.add(last)

    def _adopt(self, name: str, module: nn.Module) -> None:
        """Take a module that the graph calls, with its tensors, under its own name."""
        path, _, last = name.rpartition(".")
        part = self._part(path)
        if isinstance(part, Part):
            part._modules[last] = module

    def _part(self, path: str) -> nn.Module:
        """Return the module at a dotted path, made where there is none yet."""
        part: Any = self
        for step in filter(None, path.split(".")):
            if step not in part._modules:
                part._modules[step] = Part(self._watch)
            part = part._modules[step]
        found: nn.Module = part
        return found

    def _home(self, name: str) -> dict[str, Any] | None:
        """Return the dictionary that holds a parameter or buffer, ``None`` for a constant."""
        path, _, last = name.rpartition(".")
        part: Any = self
        for step in filter(None, path.split(".")):
            part = part._modules.get(step)
            if part is None:
                return None
        homes: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        return next((home for home in homes if last in home), None)

    def _bind(self, names: Sequence[str], values: Sequence[Any], call: Any) -> None:
        """Fix which tensors are the first inputs and what they have to look like."""
        self.__dict__["_names"] = tuple(names)
        self.__dict__["_wanted"] = tuple(
            TensorSpec.of(v) if isinstance(v, Tensor) else None for v in values
        )
        self.__dict__["_call"] = call.bound_to(self)
        self._find_tensors()

    def _find_tensors(self) -> None:
        homes = [(self._home(n), n) for n in self._names]
        self.__dict__["_slots"] = tuple(
            (self._constants, n) if home is None else (home, n.rpartition(".")[2])
            for home, n in homes
        )

    def _check_tensors(self) -> None:
        """Refuse tensors of another dtype, device, size or layout than compiled code reads."""
        if any(outcome.backend != "eager" for outcome in self.report.outcomes):
            for (home, key), name, wanted in zip(
                self._slots, self._names, self._wanted, strict=True
            ):
                if wanted is not None:
                    _check_tensor(name, wanted, home[key])
        self._watch.stale = False

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        shared = ("report", "_flat", "_names", "_wanted")
        made.__dict__.update({key: self.__dict__[key] for key in shared})
        rest = {
            k: v for k, v in self.__dict__.items() if k not in (*shared, "_call", "_root", "_slots")
        }
        made.__dict__.update(copy.deepcopy(rest, memo))
        made.__dict__["_root"] = _copied_root(self._root, memo)
        made.__dict__["_call"] = self._call.bound_to(made)
        made._find_tensors()
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise pickle.PicklingError(
            "a compiled module cannot be pickled: its code belongs to this process. Save its "
            "weights with torch.save(module.state_dict(), path) and compile the model again"
        )


def _copied_root(root: SimpleNamespace, memo: dict[int, Any]) -> SimpleNamespace:
    """Return the names of the flat function with modules copied and compiled code shared."""
    items = vars(root).items()
    return SimpleNamespace(
        **{k: copy.deepcopy(v, memo) if isinstance(v, nn.Module) else v for k, v in items}
    )


def _tensors_of(graph: GraphModule) -> Iterator[tuple[str, Tensor]]:
    yield from graph.named_parameters(remove_duplicate=False)
    yield from graph.named_buffers(remove_duplicate=False)


def _recorded(graph: GraphModule, names: Sequence[str]) -> list[Any]:
    """Return the attributes as the graph recorded them, or as they are."""
    recorded = {
        str(n.target): n.meta["val"]
        for n in graph.graph.find_nodes(op="get_attr")
        if "val" in n.meta
    }
    return [recorded.get(name, resolve_attribute(graph, name)) for name in names]


def _check_tensor(name: str, wanted: TensorSpec, given: Any) -> None:
    why = "the module was compiled for other weights: "
    fits = (
        isinstance(given, Tensor)
        and given.dtype is wanted.dtype
        and given.shape == wanted.shape
        and given.device == wanted.device
    )
    if not fits:
        raise InputMismatchError(f"{why}{mismatch(name, wanted, given)}. Compile the model again")
    if wanted.strides and not same_layout(given.shape, given.stride(), wanted.strides):
        raise InputMismatchError(
            f"{why}{name} has strides {given.stride()} and has to have {wanted.strides}. Compile "
            "the model again"
        )
