"""The ``torch.compile`` backend, registered by the ``torch_dynamo_backends`` entry point alone.

AOTAutograd hands over functional graphs: mutations are extra outputs, autocast and no_grad regions
are gone, weights are inputs; forward and backward graphs of training look alike and are split and
compiled each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from hierpart.build import build_graph, check_backend_options
from hierpart.capture import aot_decompositions
from hierpart.errors import OptionError, UnsupportedModeError, nearest
from hierpart.graph import lift_literals_of
from hierpart.options import Options
from hierpart.report import Report


def hierpart(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """Compile one graph of Dynamo's; ``torch.compile(model, backend="hierpart")`` calls this.

    Args:
        gm: Dynamo's graph.
        example_inputs: Its example inputs; nothing keeps them.
        kwargs: ``options`` (as in :class:`hierpart.Options`, a backend's own under its name) and
            ``mode``, as given to ``torch.compile``.

    Raises:
        OptionError: An option is not known or not legal.
        UnsupportedModeError: The mode is none of Inductor's, or Inductor is not used.
    """
    return _from_keywords(kwargs)(gm, example_inputs)


class Backend:
    """The same as an object: checks its options at once and keeps the reports.

    ``torch.compile(model, backend=hierpart.Backend(min_block_size=3))``. Two objects with equal
    options are equal, so that Dynamo does not compile again for the second one (whose ``reports``
    then stay empty).

    Args:
        mode: One of Inductor's modes, as in ``torch.compile``.
        options: As in :class:`hierpart.Options`; a backend's own under its name.

    Attributes:
        options: The checked options.
        reports: One a compiled graph, in the order of compilation.

    Raises:
        OptionError: An option is not known or not legal.
        UnsupportedModeError: The mode is none of Inductor's, or Inductor is not used.
    """

    def __init__(self, *, mode: str | None = None, **options: Any) -> None:
        self.options = _with_mode(Options.from_mapping(options), mode)
        check_backend_options(self.options)
        self.reports: list[Report] = []

    def __call__(
        self, gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any
    ) -> Callable[..., Any]:
        """Compile one graph of Dynamo's."""
        if kwargs:
            raise OptionError(
                f"torch.compile was given {', '.join(sorted(kwargs))} besides a backend object; "
                "give them to hierpart.Backend(...) instead"
            )
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch import config

        compile_graph = aot_autograd(
            fw_compiler=self._compiler("forward graph"),
            bw_compiler=self._compiler("backward graph"),
            inference_compiler=self._compiler("inference graph"),
            decompositions=aot_decompositions(self.options),
            partition_fn=self._partitioner(),
            keep_inference_input_mutations=False,
        )
        # That cache would have to serialise what we return, and its key knows none of our options.
        with config.patch(force_autograd_cache=False):
            compiled: Callable[..., Any] = compile_graph(gm, example_inputs)
        return compiled

    def reset(self) -> None:
        """Forget the reports; ``torch._dynamo.reset()`` calls this."""
        self.reports.clear()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Backend) and self.options == other.options

    def __hash__(self) -> int:
        return hash((self.options.backend_priority, self.options.decompositions))

    def __repr__(self) -> str:
        return f"hierpart.Backend(backend_priority={self.options.backend_priority!r})"

    def _compiler(self, kind: str) -> Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]:
        def compile_graph(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            # Dynamo guards on the layout of inputs; nobody does on that of saved activations.
            lifted = lift_literals_of(gm)
            built = build_graph(
                lifted, self.options, notes=(f"{kind} of torch.compile",),
                exact_inputs=kind != "backward graph",
            )  # fmt: skip
            self.reports.append(built.report)
            constants = [_constant(lifted, name) for name in built.flat.attributes]
            return _boxed(built.flat.run, constants)

        return compile_graph

    def _partitioner(self) -> Callable[..., Any]:
        """Return what cuts the joint graph into forward and backward.

        Inductor recomputes cheap values in fused kernels, so fewer need saving; eager kernels
        would pay for each.
        """
        from torch._functorch import partitioners

        if "inductor" in self.options.backend_priority:
            cut: Callable[..., Any] = partitioners.min_cut_rematerialization_partition
            return cut
        return partitioners.default_partition


def _boxed(run: Callable[[list[Any]], Any], first: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """Return a function of one list that puts the graph's own constants before its items."""

    def call(args: list[Any]) -> Any:
        if not first:
            return run(args)
        values = [*first, *args]
        args.clear()
        return run(values)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _constant(gm: GraphModule, name: str) -> Any:
    from hierpart.graph import resolve_attribute

    return resolve_attribute(gm, name)


def _from_keywords(kwargs: Mapping[str, Any]) -> Backend:
    for key in kwargs:
        if key not in ("options", "mode"):
            raise OptionError(f"unknown keyword {key!r}" + nearest(key, ["options", "mode"]))
    return Backend(mode=kwargs.get("mode"), **(kwargs.get("options") or {}))


def _with_mode(options: Options, mode: str | None) -> Options:
    """Return the options with what Inductor's ``mode`` stands for; own settings win.

    Raises:
        UnsupportedModeError: The mode is none of Inductor's, or Inductor is not used.
    """
    if mode is None or mode == "default":
        return options
    from torch._inductor import list_mode_options

    known = list_mode_options()
    if mode not in known:
        raise UnsupportedModeError(f"mode {mode!r} is not known" + nearest(mode, known))
    if "inductor" not in options.backend_priority:
        raise UnsupportedModeError(
            f"mode {mode!r} is a mode of Inductor's and 'inductor' is not in backend_priority "
            f"{options.backend_priority}"
        )
    import dataclasses

    settings = {**known[mode], **options.options_of("inductor")}
    return dataclasses.replace(
        options, backend_options={**options.backend_options, "inductor": settings}
    )
