"""torch_tensorrt on this machine: which packaging there is, whether it fits, how it is imported.

It comes as ``torch-tensorrt`` (TensorRT) and as ``torch-tensorrt-rtx`` (TensorRT-RTX). Both import
only where there is a GPU, though the RTX packaging builds engines without one: while it is being
imported, the few questions about the GPU are answered here.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os.path
import re
import threading
import unittest.mock
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from hierpart.errors import BackendUnavailableError

RTX = "torch-tensorrt-rtx"
PACKAGES = ("torch-tensorrt", RTX)
RUNTIMES = {"torch-tensorrt": ("tensorrt",), RTX: ("tensorrt-rtx", "tensorrt_rtx")}

_importing = threading.Lock()


def installed() -> tuple[str, str] | None:
    """Return the name and the version of the packaging of torch_tensorrt that is installed."""
    return next(((name, v) for name in PACKAGES if (v := _version(name))), None)


def is_rtx() -> bool:
    """Whether the packaging is that of TensorRT-RTX."""
    found = installed()
    return found is not None and found[0] == RTX


def versions() -> dict[str, str]:
    """Return the versions that an engine depends on, by package."""
    found = {"torch": str(torch.__version__)}
    package = installed()
    if package is not None:
        found[package[0]] = package[1]
        runtime = next((v for name in RUNTIMES[package[0]] if (v := _version(name))), None)
        found[RUNTIMES[package[0]][0]] = runtime or "unknown"
    return found


def problem() -> str | None:
    """Return why torch_tensorrt cannot be imported here, ``None`` where it can; imports nothing."""
    found = installed()
    if found is None:
        return f"neither {PACKAGES[0]} nor {PACKAGES[1]} is installed"
    name, its_version = found
    ours, theirs = _minor(torch.__version__), _minor(its_version)
    if ours != theirs:
        return f"{name} {its_version} is made for torch {theirs}, and this is {torch.__version__}"
    return None


def gpu() -> tuple[int, int] | None:
    """Return the compute capability of the current GPU, ``None`` where there is none."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def library() -> Any:
    """Return the module ``torch_tensorrt``.

    Raises:
        BackendUnavailableError: It is not installed, does not fit this torch, or fails to import;
            the message says which.
    """
    why = problem()
    if why is not None:
        raise BackendUnavailableError(f"TensorRT cannot be used: {why}")
    return _imported()


@functools.cache
def _imported() -> Any:
    with _importing, _as_if_there_were_a_gpu(), _python_as_it_was():
        try:
            return importlib.import_module("torch_tensorrt")
        except Exception as error:  # its import runs code of CUDA, TensorRT and torch
            first = str(error).partition("\n")[0]
            raise BackendUnavailableError(
                f"TensorRT cannot be used: importing torch_tensorrt failed with "
                f"{type(error).__name__}: {first}"
            ) from error


@contextlib.contextmanager
def _as_if_there_were_a_gpu() -> Iterator[None]:
    """Answer what ``import torch_tensorrt`` asks of CUDA where there is none.

    It asks for the capability of the GPU (to tell a Tegra apart), and for the current device (a
    default argument). A build of torch without CUDA also lacks a type that annotations name, and
    cannot load the C++ runtime, so that is left out. All is as it was when this returns.
    """
    with contextlib.ExitStack() as stack:
        patch = unittest.mock.patch.object
        if not torch.cuda.is_available():
            stack.enter_context(patch(torch.cuda, "get_device_capability", lambda *_: (0, 0)))
            stack.enter_context(patch(torch.cuda, "current_device", lambda: 0))
        if torch.version.cuda is None:
            properties = torch.cuda._CudaDeviceProperties
            stack.enter_context(patch(torch._C, "_CudaDeviceProperties", properties, create=True))
            is_file = os.path.isfile
            stack.enter_context(
                patch(os.path, "isfile", lambda p: "libtorchtrt" not in str(p) and is_file(p))
            )
        yield


@contextlib.contextmanager
def _python_as_it_was() -> Iterator[None]:
    """Undo that the import sends Python's warnings to logging; keep its notices to itself."""
    show, logger = warnings.showwarning, logging.getLogger("torch_tensorrt")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if warnings.showwarning is not show:
            logging.captureWarnings(False)


@functools.cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _minor(text: str) -> str:
    return ".".join(re.findall(r"\d+", text)[:2])
