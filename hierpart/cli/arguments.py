"""What the command line takes: commands, options, help, examples and exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hierpart.testing.campaign import add_arguments

Command = Callable[[argparse.Namespace], int]

EPILOG = """\
examples:
  python -m hierpart demo
  python -m hierpart explain model.pt2
  python -m hierpart explain hierpart.demo:build --min-block-size tensorrt=8,inductor=2
  python -m hierpart explain hierpart.demo:build --priority inductor --require-full
  python -m hierpart explain model.pt2 --html report.html --advice
  python -m hierpart compile model.pt2 --torch-executed-ops aten.topk.default --json
  python -m hierpart compile model.pt2 --html report.html --repro 3=block_three
  python -m hierpart compile model.pt2 --check --compile-timeout 60 --compile-memory 4G
  python -m hierpart draw model.pt2 model.svg
  python -m hierpart backends --json
  python -m hierpart fuzz --seconds 600 --save findings

exit codes:
  0  done
  1  the answer is no: an op has to run eagerly and --require-full was given, a block fails and
     --strict was given, the compiled module differs from eager, or fuzzing found a fault
  2  the command line, the file, the factory or an output file cannot be used, or an extra is
     missing; one line on stderr says why
"""

TARGET_HELP = """\
a .pt2 file saved by torch.export.save, or module:factory, where factory() returns
(model, args) or (model, args, kwargs)"""


def parser_of(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Return the parser of the command line; ``arguments.run`` is the command's function.

    Args:
        commands: What each command runs.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="hierpart",
        description="Run every part of a PyTorch graph on the best backend that can run it.",
        epilog=EPILOG,
        formatter_class=raw,
    )
    added_to = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> Any:
        added = added_to.add_parser(
            name, help=text, description=text, epilog=EPILOG, formatter_class=raw
        )
        added.set_defaults(run=commands[name])
        return added

    command("demo", "split, compile, check and time a small network")
    explain = command("explain", "say what would run where and why; compiles nothing")
    build = command("compile", "compile, compare with eager and say what ran where")
    draw = command("draw", "draw the graph, coloured by block, into a file")
    backends = command("backends", "list the backends and whether they can be used here")
    add_arguments(command("fuzz", "split random graphs and look for faults"))
    for each in (explain, build, draw):
        _add_split_options(each)
    for each in (explain, build):
        _add_report_options(each)
    explain.add_argument(
        "--advice",
        action="store_true",
        help="rank refused ops by what supporting each would give, and try other minimum sizes",
    )
    _add_compile_options(build)
    draw.add_argument(
        "out",
        metavar="OUT",
        help="a .dot, .png, .svg or .pdf file, or .json for Model Explorer's node data",
    )
    for each in (explain, build, backends):
        each.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def _add_split_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", metavar="TARGET", help=TARGET_HELP)
    add(
        "--import",
        metavar="MODULE",
        dest="imports",
        action="append",
        default=[],
        help="import a module first, for the ops that it registers",
    )
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


def _add_compile_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    switch: dict[str, Any] = {"action": "store_true", "default": None}
    add("--check", **switch, help="compare each compiled block with eager by itself")
    add("--strict", **switch, help="exit with 1 if a block fails to compile")
    add(
        "--compile-timeout",
        metavar="SECONDS",
        type=float,
        help="most seconds to compile and first run one block, in a child process",
    )
    add(
        "--compile-memory",
        metavar="BYTES",
        type=_bytes,
        help="most memory that it may allocate there: bytes, or like 512M or 4G",
    )
    add("--cache-dir", metavar="DIR", help="where backends keep what they compile")
    add("--workers", metavar="N", type=int, help="processes that compile side by side")
    add("--max-blocks", metavar="N", type=int, help="accelerated blocks to compile; rest is eager")


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--all", action="store_true", help="show every row of every table")
    add("--html", metavar="FILE", help="write the report as one HTML page, too")
    add(
        "--repro",
        metavar="BLOCK=DIR",
        type=_repro,
        action="append",
        default=[],
        help="write a block and a script that times it by itself into a folder",
    )


def _bytes(text: str) -> int:
    """Read ``4294967296``, ``512M`` or ``4G`` (of 1024)."""
    powers = {"K": 10, "M": 20, "G": 30}
    number, power = (text[:-1], powers[text[-1]]) if text[-1:] in powers else (text, 0)
    if not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of bytes nor like 512M")
    return int(number) << power


def _repro(text: str) -> tuple[int, str]:
    """Read ``3=folder``."""
    number, _, folder = text.partition("=")
    if not number.strip().isdigit() or not folder:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 3=folder")
    return int(number), folder


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
