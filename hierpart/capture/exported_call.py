"""Calls of a compiled exported program, by the program's own signature.

The lifted graph takes state and flat inputs; it returns updates of state and inputs, then the flat
outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from hierpart.capture.graph_call import Owner, conditions_on
from hierpart.capture.input_check import InputCheck, InputMismatchError
from hierpart.errors import InputTypeError
from hierpart.graph import Evaluate, value_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class Write:
    """An output that is written back after the run.

    Attributes:
        output: Its position.
        state: Qualified name of the parameter or buffer, ``None`` for a user input.
        user_input: Position among the flat user inputs, -1 for state.
        copied: Whether the value may share memory with something that is written before it.
    """

    output: int
    state: str | None
    user_input: int
    copied: bool


@dataclass(frozen=True)
class ExportCall:
    """Calls the compiled lifted graph of an exported program with the program's own convention.

    Attributes:
        in_spec: Structure of ``(args, kwargs)``.
        out_spec: Structure of the result.
        names: Argument names of the original ``forward`` in order, where they are known.
        state: Qualified names of the graph's first inputs.
        constants: Values of those that are neither parameter nor buffer.
        unsaved: Buffers that are in no state dict.
        check: Checks the flat user inputs.
        writes: Updates of buffers and user inputs.
        results: Where each leaf of the result comes from: a position among the outputs, or the
            state or user input that the model returns itself (``Write`` of that place).
        conditions: What compiled code asks of the user inputs besides; ``None`` for nothing.
        plain: Number of inputs where all are positional and none is in a container, else -1.
    """

    in_spec: Any
    out_spec: Any
    names: tuple[str, ...]
    state: tuple[str, ...]
    constants: Mapping[str, Any]
    unsaved: Mapping[str, Any]
    check: InputCheck
    writes: tuple[Write, ...]
    results: tuple[int | Write, ...]
    conditions: Evaluate | None = None
    plain: int = -1

    @classmethod
    def of(cls, program: ExportedProgram) -> ExportCall:
        """Return the convention of ``program``."""
        from torch.export.graph_signature import InputKind

        specs = program.graph_signature.input_specs
        users = [i for i, s in enumerate(specs) if s.kind is InputKind.USER_INPUT]
        if users != list(range(len(specs) - len(users), len(specs))):
            raise InputTypeError(
                "the exported program takes state after user inputs, which torch.export does not "
                "make; export the model again"
            )
        nodes = program.graph.find_nodes(op="placeholder")
        signature = program.module_call_graph[0].signature
        constants, unsaved = _constants(program)
        in_spec = program.call_spec.in_spec
        return cls(
            in_spec=in_spec,
            out_spec=program.call_spec.out_spec,
            names=tuple(getattr(signature, "forward_arg_names", None) or ()),
            state=tuple(_state_name(s) for s in specs[: len(specs) - len(users)]),
            constants=constants,
            unsaved=unsaved,
            check=InputCheck.of(
                _input_names(program, len(users)),
                [value_of(nodes[i]) for i in users],
                program.range_constraints,
            ),
            writes=tuple(_writes(program, users)),
            results=tuple(_results(program, users)),
            plain=_plain(in_spec),
        )

    def values_of(self, program: ExportedProgram) -> list[Any]:
        """Return the example values of the state inputs."""
        nodes = program.graph.find_nodes(op="placeholder")[: len(self.state)]
        return [value_of(node) for node in nodes]

    def bound_to(self, owner: Owner) -> ExportCall:
        """Return this: the convention belongs to no module."""
        return self

    def under(self, conditions: Sequence[Any]) -> ExportCall:
        """Return this with conditions on size symbols; where they fail, all runs eagerly."""
        return replace(self, conditions=conditions_on(conditions, self.check))

    def __call__(self, owner: Owner, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run ``owner`` with the arguments of the original model."""
        given = self.flat(args, kwargs)
        values = self.check(given)
        fits = self.conditions is None or all(self.conditions(values))
        outputs = owner.run_flat(values, fits)
        for write in self.writes:
            value = outputs[write.output]
            _place(write, owner, given).copy_(value.clone() if write.copied else value)
        leaves = [
            outputs[r] if isinstance(r, int) else _place(r, owner, given) for r in self.results
        ]
        return pytree.tree_unflatten(leaves, self.out_spec)

    def flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the flat user inputs.

        Raises:
            InputMismatchError: The arguments have another structure than those of the capture.
        """
        if len(args) == self.plain and not kwargs and all(isinstance(a, Tensor) for a in args):
            return list(args)
        try:
            leaves: list[Any] = self.in_spec.flatten_up_to((tuple(args), dict(kwargs)))
        except ValueError as error:
            moved = self._by_name(args, kwargs)
            if moved is None:
                raise InputMismatchError(
                    "the module was compiled for arguments of the structure "
                    f"{_structure(self.in_spec)} and was called with "
                    f"{_structure(pytree.tree_structure((tuple(args), dict(kwargs))))}"
                ) from error
            return self.flat(*moved)
        return leaves

    def _by_name(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the arguments with each one passed as at the capture, by position or by name."""
        positional, named = self.in_spec.children()
        if len(self.names) != positional.num_children + named.num_children:
            return None
        count = positional.num_children
        values = dict(zip(self.names, args, strict=False)) | dict(kwargs)
        if len(values) != len(args) + len(kwargs) or set(values) != set(self.names):
            return None
        moved = tuple(values[n] for n in self.names[:count])
        rest = {n: values[n] for n in self.names[count:]}
        if len(moved) == len(args) and set(rest) == set(kwargs):
            return None
        return moved, rest


def _place(write: Write, owner: Owner, given: Sequence[Any]) -> Tensor:
    found: Tensor = given[write.user_input] if write.state is None else owner.tensor(write.state)
    return found


def _plain(spec: Any) -> int:
    positional, named = spec.children()
    children = positional.children()
    return -1 if named.num_children or not all(c.is_leaf() for c in children) else len(children)


def _structure(spec: Any) -> str:
    positional, named = spec.children()
    parts = [_show(s) for s in positional.children()]
    parts += [f"{k}={_show(s)}" for k, s in zip(named.context or (), named.children(), strict=True)]
    return f"({', '.join(parts)})"


def _show(spec: Any) -> str:
    return "*" if spec.is_leaf() else " ".join(str(spec).split())


def _state_name(spec: Any) -> str:
    """Return the qualified name of a state input; a token has none of its own."""
    return str(spec.target) if spec.target is not None else f"<{spec.arg.name}>"


def _constants(program: ExportedProgram) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return constants by name, and the buffers that are in no state dict."""
    from torch.export.graph_signature import InputKind

    constants: dict[str, Any] = {}
    unsaved: dict[str, Any] = {}
    for spec in program.graph_signature.input_specs:
        name = _state_name(spec)
        if spec.kind is InputKind.TOKEN:
            constants[name] = torch.empty(0)  # only the order of its users matters
        elif spec.kind in (InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ):
            constants[name] = program.constants[name]
        elif spec.kind is InputKind.BUFFER and not spec.persistent:
            unsaved[name] = program.constants[name]
    return constants, unsaved


def _input_names(program: ExportedProgram, count: int) -> list[str]:
    """Return what messages call the flat user inputs: their paths in the arguments."""
    in_spec = program.call_spec.in_spec
    marked = pytree.tree_unflatten(list(range(count)), in_spec)
    paths: Any = pytree.tree_flatten_with_path(marked)[0]
    signature = program.module_call_graph[0].signature
    names = list(getattr(signature, "forward_arg_names", None) or ())
    found = [""] * count
    for (kind, first, *rest), position in paths:
        at = pytree.keystr(tuple(rest))
        if kind.idx == 0:
            name = names[first.idx] if first.idx < len(names) else f"args[{first.idx}]"
        else:
            name = str(first.key)
        found[position] = f"{name}{at}"
    return found


def _writes(program: ExportedProgram, users: Sequence[int]) -> list[Write]:
    from torch.export.graph_signature import OutputKind

    targets = _user_positions(program, users)
    outputs: Any = program.graph.output_node().args[0]
    state = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
    found = []
    written: set[Node] = set()
    by_target = _placeholders_by_target(program)
    for i, spec in enumerate(program.graph_signature.output_specs):
        if spec.kind in state:
            write, node = Write(i, str(spec.target), -1, False), by_target[spec.target, True]
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            position = targets[str(spec.target)]
            write, node = Write(i, None, position, False), by_target[spec.target, False]
        else:
            continue
        found.append(replace(write, copied=_source(outputs[i]) in written))
        written.add(node)
    return found


def _results(program: ExportedProgram, users: Sequence[int]) -> list[int | Write]:
    """Return where each leaf of the result comes from.

    A value that is also written back is returned as the tensor that it was written to, and an
    input that is returned is the caller's own tensor, as in eager.
    """
    from torch.export.graph_signature import OutputKind

    outputs: Any = program.graph.output_node().args[0]
    places: dict[Any, Write] = {outputs[w.output]: w for w in _writes(program, users)}
    nodes = program.graph.find_nodes(op="placeholder")
    places |= {nodes[i]: Write(-1, None, n, False) for n, i in enumerate(users)}
    found: list[int | Write] = []
    for i, spec in enumerate(program.graph_signature.output_specs):
        if spec.kind is not OutputKind.USER_OUTPUT:
            continue
        node = outputs[i]
        found.append(places.get(node, i) if isinstance(node, Node) else i)
    return found


def _user_positions(program: ExportedProgram, users: Sequence[int]) -> dict[str, int]:
    specs = program.graph_signature.input_specs
    return {specs[i].arg.name: position for position, i in enumerate(users)}


def _placeholders_by_target(program: ExportedProgram) -> dict[tuple[Any, bool], Node]:
    """Return placeholders by name and whether they are state (its name) or not (their own)."""
    nodes = program.graph.find_nodes(op="placeholder")
    pairs = zip(program.graph_signature.input_specs, nodes, strict=True)
    return {(s.target, True) if s.target is not None else (s.arg.name, False): n for s, n in pairs}


def _source(value: Any) -> Any:
    """Return the node whose memory a value may share: through views back to where they start."""
    while isinstance(value, Node) and isinstance(value.target, torch._ops.OpOverload):
        returns = value.target._schema.returns
        if not (returns and returns[0].alias_info is not None):
            break
        value = value.args[0]
    return value
