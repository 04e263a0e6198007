"""The command line, ``python -m hierpart COMMAND``; nothing else in the package prints."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from hierpart.errors import FullCompilationError, HierpartError
from hierpart.options import Options
from hierpart.page import clip
from hierpart.tables import LIMIT
from hierpart.targets import load_target
from hierpart.testing.command import add_arguments

if TYPE_CHECKING:
    from hierpart.report import Report

DONE, NO, UNUSABLE = 0, 1, 2

EPILOG = """\
examples:
  python -m hierpart demo
  python -m hierpart explain model.pt2
  python -m hierpart explain hierpart.demo:build --min-block-size tensorrt=8,inductor=2
  python -m hierpart explain hierpart.demo:build --priority inductor --require-full
  python -m hierpart compile model.pt2 --torch-executed-ops aten.topk.default --json
  python -m hierpart backends --json
  python -m hierpart fuzz --seconds 600 --save findings

exit codes:
  0  done
  1  the answer is no: an op has to run eagerly and --require-full was given, the compiled
     module differs from eager, or fuzzing found a fault
  2  the command line, the file or the factory cannot be used; one line on stderr says why
"""

TARGET_HELP = """\
a .pt2 file saved by torch.export.save, or module:factory, where factory() returns
(model, args) or (model, args, kwargs)"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (0 done, 1 the answer is no, 2 not usable)."""
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except BrokenPipeError:  # the reader of a pipe, head or less, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except FullCompilationError as error:
        _complain(str(error))
        return NO
    except HierpartError as error:
        _complain(str(error))
        return UNUSABLE


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="hierpart",
        description="Run every part of a PyTorch graph on the best backend that can run it.",
        epilog=EPILOG,
        formatter_class=raw,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> Any:
        added = commands.add_parser(
            name, help=text, description=text, epilog=EPILOG, formatter_class=raw
        )
        added.set_defaults(run=run)
        return added

    command("demo", _demo, "split, compile, check and time a small network")
    explain = command("explain", _explain, "say what would run where and why; compiles nothing")
    build = command("compile", _compile, "compile, compare with eager and say what ran where")
    backends = command("backends", _backends, "list the backends and whether they can be used here")
    add_arguments(command("fuzz", _fuzz, "split random graphs and look for faults"))
    for parser_of in (explain, build):
        _add_split_options(parser_of)
    for parser_of in (explain, build, backends):
        parser_of.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def _add_split_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", metavar="TARGET", help=TARGET_HELP)
    add("--priority", metavar="A,B", type=_names, help="backends, best first")
    add("--min-block-size", metavar="N|A=N,B=N", type=_sizes, help="fewest compute ops of a block")
    add(
        "--support",
        metavar="BACKEND=OPS",
        type=_support,
        action="append",
        default=[],
        help="ops of a backend: names with commas between, or @FILE with one name a line",
    )
    add("--torch-executed-ops", metavar="OPS", type=_names, help="ops that always run eagerly")
    add(
        "--require-full", action="store_true", help="exit with 1 if a compute op has to run eagerly"
    )
    add("--all", action="store_true", help="show every row of every table")


def _names(text: str) -> tuple[str, ...]:
    """Read ``a,b`` or, from a file with one name a line, ``@FILE``."""
    if text.startswith("@"):
        try:
            lines = Path(text[1:]).read_text().splitlines()
        except OSError as error:
            raise argparse.ArgumentTypeError(f"{text[1:]}: {error.strerror}") from error
        return tuple(line.strip() for line in lines if line.strip())
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _sizes(text: str) -> int | dict[str, int]:
    """Read ``5`` or ``tensorrt=8,inductor=2``."""
    try:
        if "=" not in text:
            return int(text)
        pairs = [pair.partition("=") for pair in text.split(",")]
        return {name.strip(): int(size) for name, _, size in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a whole number nor like tensorrt=8,inductor=2"
        ) from None


def _support(text: str) -> tuple[str, tuple[str, ...]]:
    """Read ``tensorrt=op,op``."""
    name, equals, ops = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not like tensorrt=op,op")
    return name.strip(), _names(ops)


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
    }
    return Options.from_mapping({k: v for k, v in given.items() if v is not None})


def _demo(_: argparse.Namespace) -> int:
    from hierpart.demo import demo

    return DONE if demo(_say).passed() else NO


def _explain(arguments: argparse.Namespace) -> int:
    from hierpart.report import explain

    model, args, kwargs = load_target(arguments.target)
    _show(explain(model, args, kwargs, options=_options(arguments)), arguments)
    return DONE


def _compile(arguments: argparse.Namespace) -> int:
    from hierpart.build import compile_model
    from hierpart.compare import compare

    model, args, kwargs = load_target(arguments.target)
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
    from hierpart.testing.command import run

    return DONE if run(arguments, _say) else NO


def _why_not(name: str) -> str | None:
    """Return why the backend cannot be used; a plug-in that fails to load is a reason too."""
    from hierpart.backends import get_backend

    try:
        return get_backend(name).available()
    except Exception as error:  # whatever a third party's module raises on import
        return clip(f"cannot be loaded: {type(error).__name__}: {error}", 200)


def _show(report: Report, arguments: argparse.Namespace) -> None:
    """Print the report as JSON, through rich on a terminal that has it, else as text."""
    if arguments.json:
        _say(report.to_json(indent=2))
    elif arguments.all or not sys.stdout.isatty() or find_spec("rich") is None:
        _say(report.text(0 if arguments.all else LIMIT))
    else:
        from rich.console import Console

        Console().print(report)


def _say(text: str) -> None:
    print(text, flush=True)


def _complain(text: str) -> None:
    print(f"hierpart: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
