"""The command line, ``python -m hierpart COMMAND``; nothing else in the package prints."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch import nn

from hierpart.cli.arguments import parser_of
from hierpart.cli.targets import import_modules, load_target
from hierpart.errors import BackendCompileError, FullCompilationError, HierpartError
from hierpart.options import Options
from hierpart.page import clip
from hierpart.plan import LIMIT

if TYPE_CHECKING:
    from hierpart.report import Advice, Report

DONE, NO, UNUSABLE = 0, 1, 2
COMPILE_OPTIONS = "check", "strict", "compile_timeout", "compile_memory", "cache_dir", "max_blocks"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (0 done, 1 the answer is no, 2 not usable)."""
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except BrokenPipeError:  # the reader of a pipe, head or less, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (FullCompilationError, BackendCompileError) as error:
        _complain(str(error))
        return NO
    except (HierpartError, OutputError) as error:
        _complain(str(error))
        return UNUSABLE


class OutputError(Exception):
    """A file that the command line names cannot be written; the message is one line."""


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from error


def _parser() -> argparse.ArgumentParser:
    commands = {
        "demo": _demo, "explain": _explain, "compile": _compile, "draw": _draw,
        "backends": _backends, "fuzz": _fuzz,
    }  # fmt: skip
    return parser_of(commands)


def _load(arguments: argparse.Namespace) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import_modules(arguments.imports)
    return load_target(arguments.target)


def _options(arguments: argparse.Namespace) -> Options:
    """Return the options that the command line gives.

    Raises:
        OptionError: One of them is not legal.
    """
    given = {
        "backend_priority": arguments.priority,
        "min_block_size": arguments.min_block_size,
        "backend_support_map": dict(arguments.support) or None,
        "torch_executed_ops": arguments.torch_executed_ops,
        "require_full_compilation": arguments.require_full or None,
        **_compile_options(arguments),
    }
    return Options.from_mapping({k: v for k, v in given.items() if v is not None})


def _compile_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what ``compile`` alone takes, ``None`` where it was not given."""
    given = {name: getattr(arguments, name, None) for name in COMPILE_OPTIONS}
    return {**given, "compile_workers": getattr(arguments, "workers", None)}


def _demo(_: argparse.Namespace) -> int:
    from hierpart.cli.demonstration import demo

    return DONE if demo(_say).passed() else NO


def _explain(arguments: argparse.Namespace) -> int:
    from hierpart.report import explain

    model, args, kwargs = _load(arguments)
    report = explain(model, args, kwargs, options=_options(arguments))
    _show(report, arguments, report.advice() if arguments.advice else None)
    return DONE


def _draw(arguments: argparse.Namespace) -> int:
    from hierpart.report import explain

    model, args, kwargs = _load(arguments)
    report = explain(model, args, kwargs, options=_options(arguments))
    with _writing(arguments.out):
        written = report.draw(arguments.out)
    for path in written:
        _say(str(path))
    return DONE


def _compile(arguments: argparse.Namespace) -> int:
    from hierpart.build import compile_model
    from hierpart.cli.compare import compare

    model, args, kwargs = _load(arguments)
    compiled = compile_model(model, args, kwargs, options=_options(arguments))
    _show(compiled.report, arguments)
    eager = model if isinstance(model, nn.Module) else model.module()
    check = compare(eager, compiled, args, kwargs)
    if not arguments.json:
        _say(f"\nagainst eager: {check}")
    elif not check.passed():
        _complain(f"compiled module differs from eager: {check}")
    return DONE if check.passed() else NO


def _backends(arguments: argparse.Namespace) -> int:
    from hierpart.backends import entry_point_backends

    states = {name: _why_not(name) for name in entry_point_backends()}
    if arguments.json:
        rows = {n: {"available": not why, "why_not": why} for n, why in states.items()}
        _say(json.dumps(rows, indent=2))
        return DONE
    width = max(map(len, states))
    for name, why in states.items():
        _say(f"{name:{width}}  " + (f"not here: {why}" if why else "available"))
    _say(f"{'eager':{width}}  available (always the last resort)")
    return DONE


def _fuzz(arguments: argparse.Namespace) -> int:
    from hierpart.testing.campaign import run

    return DONE if run(arguments, _say) else NO


def _why_not(name: str) -> str | None:
    """Return why the backend cannot be used; a plug-in that fails to load is a reason too."""
    from hierpart.backends import get_backend

    try:
        return get_backend(name).available()
    except Exception as error:  # whatever a third party's module raises on import
        return clip(f"cannot be loaded: {type(error).__name__}: {error}", 200)


def _show(report: Report, arguments: argparse.Namespace, advice: Advice | None = None) -> None:
    """Write what files were asked for and print the report.

    It is printed as JSON, through rich on a terminal that has it, else as text.
    """
    if arguments.html is not None:
        with _writing(arguments.html):
            report.to_html(arguments.html, title=arguments.target, advice=advice)
    for block, folder in arguments.repro:
        with _writing(folder):
            report.save_repro(block, folder)
    if arguments.json:
        data = json.loads(report.to_json())
        if advice is not None:
            data["report"]["advice"] = dataclasses.asdict(advice)
        _say(json.dumps(data, indent=2))
        return
    _print(report, arguments)
    if advice is not None:
        _say(f"\n{advice}")


def _print(report: Report, arguments: argparse.Namespace) -> None:
    if arguments.all or not sys.stdout.isatty() or find_spec("rich") is None:
        _say(report.text(0 if arguments.all else LIMIT))
    else:
        from rich.console import Console

        Console().print(report)


def _say(text: str) -> None:
    print(text, flush=True)


def _complain(text: str) -> None:
    print(f"hierpart: {text}", file=sys.stderr)
