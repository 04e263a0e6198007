"""The module that runs compiled blocks: owns the weights, checks inputs, writes back updates."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from hierpart.artefact import Origin, save
from hierpart.capture import (
    Captured,
    ExportCall,
    GraphCall,
    InputMismatchError,
    TensorSpec,
    mismatch,
)
from hierpart.graph import resolve_attribute, same_layout
from hierpart.plan import EAGER
from hierpart.report import Report
from hierpart.runtime.flat_function import Flat, Pieces
from hierpart.runtime.weights import Owner

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from hierpart.plan import Plan


class CompiledModule(Owner):
    """A compiled model: called like the model, for inference, in the mode that was captured.

    Parameters and buffers are the model's own tensors under their original names: ``state_dict``,
    ``load_state_dict``, ``named_parameters`` and in-place updates work as on the model, and what
    changes here changes there. ``train()`` and ``eval()`` have no effect on what was captured.
    No gradients are recorded. ``copy.deepcopy`` copies the tensors and shares the compiled code.

    Attributes:
        report: What ran where and why, with one outcome a block.
        is_compiled: Whether any block runs compiled code.
    """

    report: Report
    is_compiled: bool
    _flat: Flat
    _twin: Flat | None
    _constants: dict[str, Any]
    _names: tuple[str, ...]
    _wanted: tuple[TensorSpec | None, ...]
    _slots: tuple[tuple[dict[str, Any], str], ...]
    _call: Any
    _origin: Origin | None
    _pieces: Pieces | None

    def __init__(
        self,
        call: Any,
        flat: Flat,
        report: Report,
        twin: Flat | None = None,
        origin: Origin | None = None,
        pieces: Pieces | None = None,
    ) -> None:
        super().__init__()
        compiled = any(outcome.backend != EAGER for outcome in report.outcomes)
        self.__dict__.update(
            report=report, is_compiled=compiled, _flat=flat, _twin=twin, _constants={},
            _call=call.bound_to(self), _origin=origin, _pieces=pieces,
        )  # fmt: skip

    @classmethod
    def of(
        cls,
        captured: Captured,
        call: ExportCall | GraphCall,
        flat: Flat,
        report: Report,
        twin: Flat | None = None,
        origin: Origin | None = None,
        pieces: Pieces | None = None,
    ) -> CompiledModule:
        """Return the module that runs what was made of a captured graph.

        Args:
            captured: The capture.
            call: How the module is called.
            flat: The compiled function.
            report: What was compiled.
            twin: The same graph run eagerly, for sizes that compiled code is not right for.
            origin: What saving needs to know.
            pieces: What ``flat`` is made from.
        """
        module = cls(call, flat, report, twin, origin, pieces)
        if captured.program is not None and isinstance(call, ExportCall):
            module._own_state(captured.program, call)
            names, values = call.state, call.values_of(captured.program)
        else:
            module._own_graph(captured.graph)
            names, values = (), []
        first = _recorded(captured.graph, flat.attributes)
        module._constants |= {
            name: resolve_attribute(captured.graph, name)
            for name in flat.attributes
            if module._home(name) is None
        }
        module.__dict__["_names"] = (*flat.attributes, *names)
        module.__dict__["_wanted"] = tuple(
            TensorSpec.of(v) if isinstance(v, Tensor) else None for v in (*first, *values)
        )
        module._find_tensors()
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

    def run_flat(self, values: Sequence[Any], fits: bool) -> Any:
        """Run on the values of the graph's inputs; the module's own tensors are put before them."""
        args = [home[name] for home, name in self._slots]
        args.extend(values)
        flat = self._flat if fits or self._twin is None else self._twin
        return flat.run(args)

    def tensor(self, name: str) -> Any:
        """Return the tensor or constant that the graph knows by its original qualified name."""
        home = self._home(name)
        return self._constants[name] if home is None else home[name.rpartition(".")[2]]

    def save(self, path: Any) -> None:
        """Write the module to one file that :func:`hierpart.load` reads.

        The file holds the weights as they are now, the plan and the compiled code.

        Raises:
            ArtefactError: The model was no exported program, or the file cannot be written.
        """
        save(self, self._origin, path)

    def running(self, flat: Any) -> CompiledModule:
        """Return a module with the same tensors that runs another function than this one."""
        made = type(self).__new__(type(self))
        vars(made).update(vars(self), _flat=flat)
        vars(made)["_call"] = self._call.bound_to(made)
        return made

    def extra_repr(self) -> str:
        """Return what ran where, in one line."""
        return self.report.summary()

    def _own_state(self, program: ExportedProgram, call: ExportCall) -> None:
        for name, value in program.state_dict.items():
            self._own(name, value)
        for name, value in call.unsaved.items():
            self._own(name, value, persistent=False)
        self._constants.update(call.constants)

    def _find_tensors(self) -> None:
        homes = [(self._home(n), n) for n in self._names]
        self.__dict__["_slots"] = tuple(
            (self._constants, n) if home is None else (home, n.rpartition(".")[2])
            for home, n in homes
        )

    def _check_tensors(self) -> None:
        """Refuse tensors of another dtype, device, size or layout than compiled code reads."""
        if self.is_compiled:
            for (home, key), name, wanted in zip(
                self._slots, self._names, self._wanted, strict=True
            ):
                if wanted is not None:
                    _check_tensor(name, wanted, home[key])
        self._watch.stale = False

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        shared = ("report", "is_compiled", "_names", "_wanted", "_origin", "_pieces")
        apart = ("_call", "_flat", "_twin", "_slots")
        rest = {k: v for k, v in vars(self).items() if k not in (*shared, *apart)}
        vars(made).update({key: vars(self)[key] for key in shared})
        vars(made).update(copy.deepcopy(rest, memo))
        vars(made)["_flat"] = self._flat.with_modules(memo)
        vars(made)["_twin"] = self._twin and self._twin.with_modules(memo)
        vars(made)["_call"] = self._call.bound_to(made)
        made._find_tensors()
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise pickle.PicklingError(
            "a compiled module cannot be pickled: its code belongs to this process. Write it to a "
            "file with module.save(path), or save its weights alone with "
            "torch.save(module.state_dict(), path)"
        )


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
