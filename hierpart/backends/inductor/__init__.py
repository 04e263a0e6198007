"""Inductor: compiles a block by itself, from its symbolic metadata.

``torch._inductor.standalone_compile`` isolates the block from an ambient ``torch.compile``, takes
size symbols from the graph (other ways bake in sizes and predicates), keeps the strides of ``val``
and decomposes by its own table, so ops may reach it whole.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from hierpart.backends.inductor.support import refusal
from hierpart.backends.protocol import CompiledBlock
from hierpart.errors import OptionError, nearest
from hierpart.plan import Verdict

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
        refused = refusal(node)
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
        from hierpart.backends.inductor.code import dump

        return dump(getattr(made, "artifact", None))

    def restore(self, data: bytes, block: GraphModule) -> CompiledBlock:
        """Return the compiled block that :meth:`dump` wrote; the bytes are read as a pickle."""
        from hierpart.backends.inductor.code import restore

        return InductorCode(restore(data))

    def fingerprint(self) -> str:
        """Return the versions of PyTorch and, where there is a GPU, of CUDA and its devices."""
        parts = [self.name, f"torch={torch.__version__}", f"cuda={torch.version.cuda}"]
        if torch.cuda.is_available():
            count = torch.cuda.device_count()
            parts += [torch.cuda.get_device_name(i) for i in range(count)]
        return " ".join(parts)


def _cached_in(folder: str | None) -> AbstractContextManager[None]:
    """Let Inductor keep its caches in ``folder``; while it does, so do other threads.

    Raises:
        OptionError: The folder cannot be made.
    """
    if folder is None:
        return nullcontext()
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"cache_dir={folder!r} cannot be used: {error}") from error
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
