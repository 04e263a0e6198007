"""A block compiled with care: first in a child process under caps, then checked beside eager."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from hierpart.backends import backend_named
from hierpart.build.block_compile import Code, compile_block, isolated, let_through, output_values
from hierpart.build.check.bench import Bench
from hierpart.build.check.comparison import NotCheckableError, check, rehearse
from hierpart.graph import canonical
from hierpart.options import Options
from hierpart.runtime import Autocast
from hierpart.sandbox import cannot_contain, contained


@dataclass(frozen=True)
class Subject:
    """A block that is to be compiled.

    Attributes:
        child: The block's module; not changed.
        weights: Tensors that never change, by position among the inputs, for backends that put
            them into their code.
        known: The tensors that are there now, by position among the inputs.
        region: The autocast region that the block runs in.
    """

    child: GraphModule
    weights: Mapping[int, Tensor]
    known: Mapping[int, Tensor]
    region: Autocast | None = None


@dataclass(frozen=True)
class Tried:
    """A compiled block, and what the user should know of how it was tried."""

    code: Code
    note: str = ""


def try_block(name: str, subject: Subject, options: Options) -> Tried:
    """Compile a block with the backend of that name, under the caps and checks of ``options``.

    Raises:
        BlockFaultError: It broke a cap, killed its process, or does not agree with eager.
        Exception: Whatever the backend raises.
    """
    notes = []
    if options.has_caps:
        why = cannot_contain()
        if why is None:
            prepare_fork(name, options)
            contained(
                for_a_child(functools.partial(_trial, name, subject, options)),
                options.compile_timeout, options.compile_memory,
            )  # fmt: skip
        else:
            notes.append(f"not contained: {why}")
    code = compile_subject(name, subject, options)
    notes.append(check_block(name, subject, options, code))
    return Tried(code, "; ".join(filter(None, notes)))


def for_a_child(work: Callable[[], object]) -> Callable[[], object]:
    """Return work that finds the tracing context of this thread in whatever thread it is done.

    In ``torch.compile`` a compiler may ask what a size is, elsewhere not; the context tells.
    """
    from torch._guards import TracingContext, tracing

    context = TracingContext.try_get()

    def run() -> None:
        with tracing(context):
            work()

    return run


def prepare_fork(name: str, options: Options) -> None:
    """Let the backend import what it needs once, here, and not again in each child process."""
    warm_up = getattr(backend_named(name, options), "warm_up", None)
    if warm_up is not None:
        warm_up()


def compile_subject(name: str, subject: Subject, options: Options) -> Code:
    """Compile a block in this process, whatever comes of it."""
    prepared = canonical(subject.child)
    return compile_block(name, prepared, options, subject.weights, subject.region)


def _trial(name: str, subject: Subject, options: Options) -> None:
    """Compile and run a block in the child process; what has to reach the caller is left to it."""
    try:
        code = compile_subject(name, subject, options)
    except Exception as error:
        if _is_let_through(error):
            return
        raise
    if code.idle is not None:
        return
    bench = _bench(name, subject, options)
    with _alone(subject.region):
        if not options.check:
            rehearse(bench, code.run)
            return
        with contextlib.suppress(NotCheckableError):
            check(bench, code.run)


def _is_let_through(error: Exception) -> bool:
    """Whether the error is not a failure of the block: compiling in the open will raise it too."""
    try:
        let_through(error)
    except Exception:
        return True
    return False


def check_block(name: str, subject: Subject, options: Options, code: Code) -> str:
    """Compare a compiled block with eager where ``check`` is on.

    Returns:
        Why it was not compared, empty where it was.

    Raises:
        BlockFaultError: They do not agree.
    """
    if not options.check:
        return ""
    if code.idle is not None:
        return f"not checked: {code.idle.splitlines()[0]}"
    try:
        with _alone(subject.region):
            check(_bench(name, subject, options), code.run)
    except NotCheckableError as error:
        return f"not checked: {error}"
    return ""


def _bench(name: str, subject: Subject, options: Options) -> Bench:
    reference = canonical(subject.child)
    backend: Any = backend_named(name, options)
    return Bench(
        reference.block, reference.inputs, output_values(reference.block),
        {**subject.known, **subject.weights}, bool(backend.keeps_aliases), options.check_tolerance,
    )  # fmt: skip


@contextlib.contextmanager
def _alone(region: Autocast | None) -> Iterator[None]:
    """Run real tensors, whatever goes on around: ``torch.compile`` compiles among fake ones.

    Private: ``_disable_current_modes`` of torch's dispatch, ``no_python_dispatcher``.
    """
    from torch._dispatch.python import no_python_dispatcher
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), no_python_dispatcher(), isolated(region):
        yield
