"""What the command line names: ``.pt2`` files and ``module:factory``."""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import sys
import traceback
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hierpart.errors import HierpartError, nearest
from hierpart.page import clip

_UNKNOWN_OP = re.compile(r"failed to resolve (?:torch\.ops\.)?(\S+) to an operator")


class InputError(HierpartError):
    """What the command line names cannot be used; the message is one line."""


def load_target(target: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the model and its example inputs.

    Raises:
        InputError: There is no such file, module or factory, or it does not hold what it should.
    """
    if target.endswith(".pt2") or Path(target).is_file():
        return _load_file(Path(target))
    return _load_factory(target)


def _load_file(path: Path) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import torch

    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: not a file written by torch.export.save")
    said: list[str] = []
    try:
        with _quiet_export(said):
            program = torch.export.load(path)
    except Exception as error:  # a damaged archive raises whatever its first bad member does
        unknown = _UNKNOWN_OP.search("\n".join((*said, str(error))))
        if unknown is not None:
            raise InputError(
                f"{path}: holds the op {unknown[1]}, which nothing has registered; name the module "
                "that registers it with --import"
            ) from error
        raise InputError(
            f"{path}: damaged, or not written by torch.export.save of a torch like "
            f"{torch.__version__}"
        ) from error
    if program.example_inputs is None:
        raise InputError(f"{path}: holds no example inputs; save it as torch.export.export made it")
    args, kwargs = program.example_inputs
    return program, tuple(args), dict(kwargs)


@contextlib.contextmanager
def _quiet_export(said: list[str]) -> Iterator[None]:
    """Keep torch from logging why it cannot read an archive; ``said`` gets it instead."""

    def keep(record: logging.LogRecord) -> bool:
        trace = record.exc_info
        said.append(record.getMessage())
        said.extend(traceback.format_exception(*trace) if trace else ())
        return False

    logger = logging.getLogger("torch.export")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def import_modules(names: Sequence[str]) -> None:
    """Import modules that register ops.

    Raises:
        InputError: One cannot be imported.
    """
    for name in names:
        _imported(name, name)


def _imported(name: str, what: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # the installed command, too, finds modules of the current folder
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{what}: {clip(str(error), 200)}") from error


def _load_factory(target: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise InputError(f"{target!r} is neither a .pt2 file nor like module:factory")
    module = _imported(module_name, target)
    factory = getattr(module, name, None)
    if not callable(factory):
        callables = [key for key, value in vars(module).items() if callable(value)]
        raise InputError(
            f"{target}: no function {name!r} in {module_name}" + nearest(name, callables)
        )
    try:
        made = factory()
    except Exception as error:  # the factory is the user's own code
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = clip(f"{type(error).__name__}: {error}", 200)
        raise InputError(f"{target}: raised {text} ({place.filename}:{place.lineno})") from error
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[1], tuple):
        raise InputError(f"{target}: has to return (model, args) or (model, args, kwargs)")
    return made[0], made[1], dict(made[2]) if len(made) == 3 else {}
