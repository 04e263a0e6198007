"""A block as a Python program that can be run by itself."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from hierpart.errors import BackendCompileError
from hierpart.graph import SYMBOLIC, canonical, hint
from hierpart.plan import Block

_PROGRAM = '''\
"""{title}: its graph, run eagerly on inputs like its own. Weights are inputs."""

{imports}


{classes}


def like(sizes, strides, dtype, device):
    """Return a tensor of this layout: floats drawn at random, all else zero."""
    extent = 1 + sum((n - 1) * s for n, s in zip(sizes, strides)) if 0 not in sizes else 0
    is_float = dtype.is_floating_point or dtype.is_complex
    memory = torch.randn(extent) if is_float else torch.zeros(extent)
    return memory.to(dtype).to(device).as_strided(sizes, strides)


def inputs():
    return [
{inputs}
    ]


if __name__ == "__main__":
    torch.manual_seed(0)
    for result in Block()(*inputs()):
        print(result)
'''


def program_of(block: GraphModule, title: str) -> tuple[str, tuple[str, ...]]:
    """Return a program that runs a block, and what each of its inputs is.

    Args:
        block: The block; not changed.
        title: The first line of the program.
    """
    prepared = canonical(block)
    imports: dict[str, None] = {"import torch": None}
    classes = "\n\n\n".join(_classes(prepared.block, "Block", imports))
    text = _PROGRAM.format(
        title=title, imports="\n".join(imports), classes=classes,
        inputs=textwrap.indent("\n".join(f"{_code(v)}," for v in prepared.inputs), " " * 8),
    )  # fmt: skip
    return text, tuple(map(_words, prepared.inputs))


def strict_error(block: Block, child: GraphModule, backend: str, why: str) -> BackendCompileError:
    """Return the error for a block that failed where no other backend may take it.

    Args:
        block: The block as the plan has it.
        child: Its module; not changed.
        backend: Who failed.
        why: What went wrong.
    """
    what = f"block {block.index} ({block.name}, {len(block.nodes)} nodes)"
    source, inputs = program_of(child, what)
    return BackendCompileError(
        f"{what} failed to compile with {backend}: {why}. Compile with strict=False "
        "(fallback=True) to run it on the next backend",
        block, backend, source, inputs,
    )  # fmt: skip


def _classes(module: GraphModule, name: str, imports: dict[str, None]) -> Iterator[str]:
    """Yield the classes of the modules that the graph reads, then its own."""
    held: dict[str, str] = {}
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            target, attribute = str(node.target), str(node.target).replace(".", "_")
            value = _attribute(module, target)
            node.target = attribute
            setattr(module, attribute, value)
            if attribute not in held:
                inner = f"{name}_{attribute}"
                held[attribute] = f"{inner}()"
                if isinstance(value, GraphModule):
                    yield from _classes(value, inner, imports)
                else:
                    held[attribute] = _unwritten(value)
    code = module.graph.python_code("self")
    imports.update(dict.fromkeys(_imports(code.globals)))
    lines = ["super().__init__()", *(f"self.{a} = {made}" for a, made in held.items())]
    init = textwrap.indent("\n".join(lines), " " * 8)
    body = textwrap.indent(code.src.strip(), " " * 4)
    yield f"class {name}(torch.nn.Module):\n    def __init__(self):\n{init}\n\n{body}"


def _attribute(module: GraphModule, target: str) -> Any:
    value: Any = module
    for step in target.split("."):
        value = getattr(value, step)
    return value


def _unwritten(value: Any) -> str:
    return f"None  # a {type(value).__qualname__}, which has no source; put it here"


def _imports(names: Mapping[str, Any]) -> Iterator[str]:
    """Yield the imports that give a graph's code the names that it uses."""
    for name, value in names.items():
        if name == "torch":
            continue
        if inspect.ismodule(value):
            yield f"import {value.__name__} as {name}"
        elif isinstance(value, float):
            yield f'{name} = float("{value}")'
        elif value is torch.device:
            yield "from torch import device"
        elif getattr(value, "__module__", None) and getattr(value, "__qualname__", None):
            yield from _import_of(name, value)


def _import_of(name: str, value: Any) -> Iterator[str]:
    if value is type(None):
        yield f"{name} = type(None)"
    elif "." not in value.__qualname__:
        yield f"from {value.__module__} import {value.__qualname__} as {name}"


def _code(value: Any) -> str:
    if isinstance(value, Tensor):
        sizes, strides = _numbers(value.shape), _numbers(value.stride())
        return f'like({sizes}, {strides}, {value.dtype}, "{value.device}")'
    return repr(hint(value) if isinstance(value, torch.SymInt) else _plain(value))


def _plain(value: Any) -> Any:
    return value.node.hint if isinstance(value, SYMBOLIC) else value


def _words(value: Any) -> str:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}{list(value.shape)} strides {list(value.stride())} on {value.device}"
    return f"{type(value).__name__} {value}"


def _numbers(sizes: Sequence[Any]) -> tuple[int, ...]:
    return tuple(hint(s) for s in sizes)
