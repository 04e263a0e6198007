"""Names of operators and functions whose effects no schema tells."""

from __future__ import annotations

import builtins
import operator

INPLACE_OPERATORS = frozenset(
    getattr(operator, n)
    for n in dir(operator)
    if n.startswith("i")
    and hasattr(operator, f"__{n}__")
    and n not in ("inv", "invert", "is_", "is_not", "index")
) | {operator.setitem, operator.delitem}

REGION_MARKERS = frozenset(
    {
        "_set_grad_enabled", "_enter_autocast", "_exit_autocast", "_enter_inference_mode",
        "_exit_inference_mode", "set_grad_enabled", "_saved_tensors_hooks_disable",
        "_saved_tensors_hooks_enable", "_vmap_increment_nesting", "_vmap_decrement_nesting",
        "manual_seed", "set_rng_state", "seed", "backward", "set_default_dtype",
    }
)  # fmt: skip

CONTAINER_WRITES = frozenset(
    {
        "append", "extend", "update", "pop", "popitem", "insert", "clear", "remove", "setdefault",
        "__setitem__", "__delitem__", "backward", "register_hook",
    }
)  # fmt: skip

PURE_MODULES = (
    "torch.nn.functional", "torch._C._nn", "torch._C._linalg", "torch._C._special", "torch._C._fft",
    "torch.functional", "torch.fx", "torch.fx.experimental.sym_node", "math", "_operator",
    "numpy", "torch.nn.init", "einops",
)  # fmt: skip

RANDOM_FUNCTIONS = frozenset(
    {
        "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
        "rrelu", "gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d",
        "multi_head_attention_forward", "rand", "randn", "randint", "randperm", "normal",
        "feature_dropout", "native_dropout", "scaled_dot_product_attention",
    }
)  # fmt: skip

COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d")

STATISTICS_WRITERS = frozenset(
    {
        "batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "instance_norm",
        "_batch_norm_impl_index", "batch_norm_update_stats", "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
    }
)  # fmt: skip
"""Ops that write running statistics in training without an annotation in their schema."""

PURE_BUILTINS = frozenset(
    getattr(builtins, n)
    for n in (
        "len", "min", "max", "abs", "int", "float", "bool", "complex", "tuple", "list", "dict",
        "set", "slice", "range", "round", "pow", "sum", "divmod", "isinstance", "hasattr", "str",
        "type", "zip", "enumerate", "reversed", "sorted", "all", "any",
    )
)  # fmt: skip

PURE_CONSTRUCTORS = frozenset(
    {
        "tensor", "as_tensor", "asarray", "from_numpy", "scalar_tensor", "is_tensor", "Size",
        "device", "dtype", "finfo", "iinfo", "is_grad_enabled", "is_autocast_enabled",
        "get_default_dtype", "result_type", "promote_types", "can_cast", "broadcast_shapes",
    }
)  # fmt: skip

UNANNOTATED_ALIASES = frozenset(
    {"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"}
)
