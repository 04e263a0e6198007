"""The exported program in a file, checked before torch reads it.

torch's reader takes a program from a trusted source. It evaluates expressions on sizes with sympy,
finds operators by walking attributes from ``torch``, imports what a pytree's description names,
puts names into code that it runs, and unpickles. Each of these is looked at here, through the same
zip reader that torch uses, and what torch's writer never writes is refused.
"""

from __future__ import annotations

import builtins
import enum
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from hierpart.artefact.expressions import check_expression
from hierpart.artefact.members import ArtefactError

_MEMBERS = re.compile(
    r"models/model\.json|data/(weights/(model_weights_config\.json|weight_\d+)"
    r"|constants/(model_constants_config\.json|tensor_\d+|(custom|opaque)_obj_\d+)"
    r"|sample_inputs/model\.pt)|archive_format|archive_version|byteorder"
    r"|\.data/(version|serialization_id)|version"
)
"""What torch.export writes of one program that is called ``model``."""
_OPERATOR = re.compile(
    r"torch\.ops\.[A-Za-z]\w*\.[A-Za-z_]\w*(\.[A-Za-z_]\w*)?"
    r"|torch\._?sym_\w+"
)
_REFUSED_OPS = (
    "from_file", "save", "load_tensor", "read_file", "write_file", "PythonOp", "call_torchbind",
    "inductor_compiled_code",
    "aoti_call_delegate", "executorch_call_delegate", "dynamo_bypassing_wrapper",
    "invoke_leaf_function", "flat_apply", "trace_wrapped", "custom_function_call",
    "autograd_function_apply",
)  # fmt: skip
"""Operators that read or write files, or run what they are given."""
_PYTHON = frozenset(
    f"_operator.{name}"
    for name in (
        "eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "mul", "add", "sub", "floordiv", "mod",
        "pow", "truediv", "and_", "or_", "xor", "not_", "lshift", "rshift", "getitem", "abs",
    )
) | {"math.trunc", "math.ceil", "math.floor", "math.sqrt"}  # fmt: skip
_FACTORIES = ("list", "dict", "set", "int", "float", "str", "tuple", "bool")
_RANGE = re.compile(r"[\w .,()*/+\-]{1,2000}")
_MOST_SYMBOLS = 1_000_000
_PATHS = re.compile(r"(weight|tensor)_\d+")


def pickle_in(data: bytes) -> str | None:
    """Return the first part of a program that torch would read as a pickle, ``None`` if none.

    Raises:
        ArtefactError: The program cannot be read.
    """
    reader, names = _opened(data)
    for name in names:
        if name.endswith("_config.json"):
            config = _mapping(_json(reader.get_record(name)), "config")
            for key, payload in config.items():
                path = _mapping({"payload": payload}, "payload").get("path_name")
                plain = isinstance(path, str) and _PATHS.fullmatch(path)
                if payload.get("use_pickle") is not False or not plain:
                    return str(key)
        elif name.endswith((".pt", ".pkl")) and not _is_plain(reader.get_record(name)):
            return name
    return None


def check_program(data: bytes) -> None:
    """Check that reading a program with torch runs nothing that the file brings.

    Raises:
        ArtefactError: It might, or the program is not as torch writes it.
    """
    reader, names = _opened(data)
    for name in names:
        if not _MEMBERS.fullmatch(name):
            raise ArtefactError(f"the exported program holds {name!r}, which torch does not write")
        if name.endswith("_config.json"):
            _check_payloads(reader, name)
    program = _json(reader.get_record("models/model.json"))
    for key in _mapping(program, "range_constraints"):
        _check_range(key)
    for guard in program.get("guards_code") or ():
        if not isinstance(guard, str):
            raise ArtefactError("a guard of the exported program is no text")
    for key, value in _pairs(program):
        _check_pair(key, value)


def _opened(data: bytes) -> tuple[Any, list[str]]:
    """Return torch's own reader of the archive, and the names in it.

    Two names that differ in case alone are one to this reader and two to others.
    """
    try:
        reader = torch._C.PyTorchFileReader(io.BytesIO(data))
        names: list[str] = reader.get_all_records()
    except RuntimeError as error:
        raise ArtefactError(f"the exported program is no archive of torch's: {error}") from error
    if len({name.casefold() for name in names}) != len(names):
        raise ArtefactError("the exported program holds two members of one name")
    if "models/model.json" not in names:
        raise ArtefactError("the exported program holds no models/model.json")
    return reader, names


def _json(data: bytes) -> Any:
    try:
        return json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"the exported program cannot be read: {error}") from error


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object.

    Raises:
        ValueError: A key stands there twice, so that readers differ in what they take.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _mapping(data: Any, key: str) -> dict[str, Any]:
    found = data.get(key) if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise ArtefactError(f"the exported program has no {key}")
    return found


def _pairs(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of every object in JSON data with its value."""
    left = [data]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            yield from item.items()
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)


def _check_pair(key: str, value: Any) -> None:
    if key == "expr_str":
        check_expression(value)
    elif key in ("target", "as_operator") and isinstance(value, str):
        _check_operator(value)
    elif key in ("in_spec", "out_spec"):
        _check_treespec(value)
    elif key in ("name", "as_name") and value is not None:
        # Names of nodes and arguments become names in code that FX writes and runs.
        if not isinstance(value, str) or (value and not value.isidentifier()):
            raise ArtefactError(f"the exported program names a value {str(value)[:100]!r}")
    elif key == "metadata" and isinstance(value, Mapping):
        for text in str(value.get("source_fn_stack", "")).split(";"):
            _check_source(text.rpartition(",")[2])


def _check_operator(target: str) -> None:
    """Check that a target is an operator and nothing else that hangs below ``torch``."""
    if target in _PYTHON:
        return
    if not _OPERATOR.fullmatch(target) or target.split(".")[-1] == "load_library":
        raise ArtefactError(f"the exported program calls {target[:100]!r}, which is no operator")
    found: Any = torch
    for name in target.split(".")[1:]:
        found = getattr(found, name, None)
    known = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)
    if not target.startswith("torch.ops."):
        fits = callable(found)
    else:
        fits = isinstance(found, known) and target.split(".")[3] not in _REFUSED_OPS
    if not fits:
        raise ArtefactError(
            f"the exported program calls {target[:100]!r}, which is no operator here; import the "
            "library that registers it first"
        )


def _check_source(text: str) -> None:
    """Check what torch looks up by walking attributes from ``torch``, without calling it."""
    if text and not re.fullmatch(r"[\w.<> '\[\]:-]*", text):
        raise ArtefactError(f"the exported program was traced from {text[:100]!r}")


def _check_treespec(text: Any) -> None:
    """Check that a pytree's description imports nothing.

    An enum is found by the name of its module; so is what makes the values of a ``defaultdict``.
    """
    if not isinstance(text, str):
        raise ArtefactError("the exported program describes a pytree by what is no text")
    if not text:
        return
    for key, value in _pairs(_json(text.encode())):
        if key != "context" or value is None:
            continue
        inner = _json(value.encode()) if isinstance(value, str) and _is_json(value) else value
        for item in _objects(inner):
            if "__enum__" in item:
                _check_enum(item)
            if "default_factory_module" in item:
                module, name = item["default_factory_module"], item.get("default_factory_name")
                if module != builtins.__name__ or name not in _FACTORIES:
                    raise ArtefactError(
                        f"the exported program makes a defaultdict of {module}.{name}; only "
                        f"{', '.join(_FACTORIES)} are read"
                    )


def _is_json(text: str) -> bool:
    return text[:1] in ("{", "[", '"')


def _objects(data: Any) -> Iterator[dict[str, Any]]:
    if isinstance(data, dict):
        yield data
        data = list(data.values())
    if isinstance(data, list):
        for item in data:
            yield from _objects(item)


def _check_enum(item: Mapping[str, Any]) -> None:
    """Check that an enum is one that this process has imported already."""
    text, name = item.get("fqn"), item.get("name")
    module, _, path = str(text).partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    if not (isinstance(found, type) and issubclass(found, enum.Enum) and name in found.__members__):
        raise ArtefactError(
            f"the exported program has {text!r} for an enum, which this process has not imported"
        )


def _check_range(key: str) -> None:
    """Check the name of a range; torch counts up to the number of an unbacked symbol."""
    number = re.fullmatch(r"(?:u|zuf)(\d+)", key)
    if not _RANGE.fullmatch(key) or (number and int(number[1][:20]) > _MOST_SYMBOLS):
        raise ArtefactError(f"the exported program has a range for {key[:100]!r}")


def _check_payloads(reader: Any, name: str) -> None:
    """Check that tensors are no larger than their bytes: torch makes the missing ones up."""
    folder = name.rpartition("/")[0]
    for key, payload in _mapping(_json(reader.get_record(name)), "config").items():
        meta = payload.get("tensor_meta") if isinstance(payload, dict) else None
        if not isinstance(meta, dict) or payload.get("use_pickle"):
            continue
        sizes = meta.get("sizes")
        plain = isinstance(sizes, list) and all(isinstance(s, dict) for s in sizes)
        counts = [s.get("as_int") for s in sizes] if plain and isinstance(sizes, list) else [None]
        path = payload.get("path_name")
        if not isinstance(path, str) or not all(type(c) is int and c >= 0 for c in counts):
            raise ArtefactError(f"the exported program describes {key} by odd sizes")
        if 0 not in counts and not len(reader.get_record(f"{folder}/{path}")):
            raise ArtefactError(f"the exported program holds no bytes of {key}")


def _is_plain(data: bytes) -> bool:
    """Whether a member is empty or holds nothing but tensors and plain containers."""
    if not data:
        return True
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # whatever it is, it is not plain
        return False
    return True
