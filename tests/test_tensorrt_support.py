"""Which nodes TensorRT is given and why others are not; the converter registry alone says too much."""

from __future__ import annotations

import operator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from hierpart.backends.tensorrt.settings import Settings
from hierpart.plan import Reason
from tests.tensorrt_models import TARGET, backend, needs_rtx, node_of

pytestmark = needs_rtx
aten, R = torch.ops.aten, Reason
F = torch.rand(2, 3)
IMAGE = torch.rand(1, 4, 8, 8)
INTS = torch.ones(2, 3, dtype=torch.int64)
BOOLS = torch.ones(2, 3, dtype=torch.bool)
COMPLEX = torch.ones(2, 3, dtype=torch.complex64)
HALF = torch.ones(2, 3, dtype=torch.float16)
CHANNELS = [torch.rand(4) for _ in range(4)]
HEADS = torch.rand(1, 2, 8, 4)


@pytest.fixture(autouse=True, scope="module")
def imported():
    assert backend().available() is None  # torch_tensorrt imports by itself only where a GPU is


def verdict(node, **options):
    return backend(**options).verdict(node)


TAKEN = {
    "add": lambda: node_of(aten.add.Tensor, F, F),
    "half": lambda: node_of(aten.relu.default, HALF),
    "bfloat16": lambda: node_of(aten.relu.default, F.bfloat16()),
    "int64": lambda: node_of(aten.add.Tensor, INTS, 1),
    "int32": lambda: node_of(aten.mul.Tensor, INTS.int(), INTS.int()),
    "bool": lambda: node_of(aten.bitwise_and.Tensor, BOOLS, BOOLS),
    "compare": lambda: node_of(aten.eq.Scalar, INTS, 3),
    "where": lambda: node_of(aten.where.self, BOOLS, F, F),
    "conv2d": lambda: node_of(aten.conv2d.default, IMAGE, torch.rand(4, 4, 3, 3)),
    "linear": lambda: node_of(aten.linear.default, F, torch.rand(5, 3), torch.rand(5)),
    "batch norm": lambda: node_of(
        aten._native_batch_norm_legit_no_training.default, IMAGE, *CHANNELS, 0.1, 1e-5
    ),
    "layer norm": lambda: node_of(aten.layer_norm.default, F, [3], torch.rand(3), torch.rand(3)),
    "group norm": lambda: node_of(aten.group_norm.default, IMAGE, 2),
    "attention": lambda: node_of(aten.scaled_dot_product_attention.default, HEADS, HEADS, HEADS),
    "attention of no dropout": lambda: node_of(
        aten.scaled_dot_product_attention.default, HEADS, HEADS, HEADS, None, 0.0
    ),
    "dropout in inference": lambda: node_of(aten.dropout.default, F, 0.5, False),
    "silu": lambda: node_of(aten.silu.default, F),
    "gelu": lambda: node_of(aten.gelu.default, F),
    "masked fill": lambda: node_of(aten.masked_fill.Scalar, F, BOOLS, 0.0),
    "embedding": lambda: node_of(aten.embedding.default, torch.rand(9, 4), INTS),
    "index": lambda: node_of(aten.index.Tensor, F, [torch.tensor([0, 1])]),
    "topk": lambda: node_of(aten.topk.default, F, 2, uses=(0, 1)),
    "sort": lambda: node_of(aten.sort.default, F, uses=(0, 1)),
    "max, values only": lambda: node_of(aten.max.dim, F, 1),
    "split": lambda: node_of(aten.split.Tensor, F, 1, uses=(0, 1)),
    "chunk": lambda: node_of(aten.chunk.default, F, 2, uses=(0, 1)),
    "cumsum": lambda: node_of(aten.cumsum.default, F, 1),
    "einsum's bmm": lambda: node_of(aten.bmm.default, torch.rand(2, 3, 4), torch.rand(2, 4, 5)),
    "avg pool": lambda: node_of(aten.avg_pool2d.default, IMAGE, [2, 2]),
    "adaptive pool": lambda: node_of(aten.adaptive_avg_pool2d.default, IMAGE, [1, 1]),
    "max pool": lambda: node_of(aten.max_pool2d.default, IMAGE, [2, 2]),
    "interpolate": lambda: node_of(aten.upsample_nearest2d.vec, IMAGE, [16, 16], None),
    "rank 8": lambda: node_of(aten.relu.default, torch.rand([2] * 8)),
    "to half": lambda: node_of(aten._to_copy.default, F, dtype=torch.float16),
}  # fmt: skip


NEWER = ("sort", "cumsum")


@pytest.mark.parametrize("name", TAKEN)
def test_what_converters_take_is_taken(name):
    if name in NEWER and torch.__version__ < "2.14":
        pytest.skip("the converters for torch 2.13 do not take it")
    found = verdict(TAKEN[name]())
    assert found.supported, str(found)


# What a look at the registry's names gives to TensorRT though no engine can be made of it.
REFUSED = {
    "complex multiply": (lambda: node_of(aten.mul.Tensor, COMPLEX, COMPLEX), R.DTYPE, "complex64"),
    "batch norm with two users": (
        lambda: node_of(aten.native_batch_norm.default, IMAGE, *CHANNELS, False, 0.1, 1e-5, uses=(0, 1)),
        None, "",
    ),
    "batch norm in training": (
        lambda: node_of(aten._native_batch_norm_legit.no_stats, IMAGE, *CHANNELS[:2], True, 0.1, 1e-5, uses=(0, 1, 2)),
        R.VALIDATOR, "no converter takes it",
    ),
    "split by a symbolic size": (
        lambda: with_symbol(node_of(aten.split.Tensor, F, 1), 1), R.DYNAMIC, "",
    ),
    "split into symbolic sizes": (
        lambda: with_symbol(node_of(aten.split.sizes, F, [1, 1]), 1), None, "",
    ),
    "split with symbolic sizes": (
        lambda: with_symbol(node_of(aten.split_with_sizes.default, F, [1, 1]), 1), None, "",
    ),
    "or of a scalar and integers": (
        lambda: node_of(aten.bitwise_or.Scalar_Tensor, 3, INTS), R.VALIDATOR, "",
    ),
    "xor of a scalar and integers": (
        lambda: node_of(aten.bitwise_xor.Scalar_Tensor, 3, INTS), R.VALIDATOR, "",
    ),
    "flash attention that shows its mask": (
        lambda: node_of(
            aten._scaled_dot_product_flash_attention.default, HEADS, HEADS, HEADS, 0.0, False, True
        ),
        None, "",
    ),
    "efficient attention that gives its sums": (
        lambda: node_of(
            aten._scaled_dot_product_efficient_attention.default, HEADS, HEADS, HEADS, None, True
        ),
        None, "",
    ),
    "attention of cuDNN that gives its sums": (
        lambda: node_of(
            aten._scaled_dot_product_cudnn_attention.default, HEADS, HEADS, HEADS, None, True
        ),
        None, "",
    ),
    "an item of a tensor": (lambda: node_of(operator.getitem, F, 0), None, ""),
    "memory of any content": (lambda: node_of(aten.empty.memory_format, [2, 3]), None, ""),
    "broadcast to more than ones": (
        lambda: node_of(torch.ops.prims.broadcast_in_dim.default, F, [2, 3, 4], [0, 1]), None, "",
    ),
    "batch norm in inference with two users": (
        lambda: node_of(
            aten._native_batch_norm_legit_no_training.default, IMAGE, *CHANNELS, 0.1, 1e-5, uses=(0, 1)
        ),
        None, "",
    ),
    "embedding bag whose offsets are read": (
        lambda: node_of(
            aten.embedding_bag.default, torch.rand(9, 4), INTS[0], torch.tensor([0, 2]), uses=(0, 1)
        ),
        None, "",
    ),
    "cross product along an axis that may not be 3": (
        lambda: with_input(node_of(aten.linalg_cross.default, F, F), torch.rand(2, 4)), None, "",
    ),
    "group norm with two users": (
        lambda: node_of(aten.native_group_norm.default, IMAGE, *CHANNELS[:2], 1, 4, 64, 2, 1e-5, uses=(0, 1)),
        None, "",
    ),
    "max with two users": (lambda: node_of(aten.max.dim, F, 1, uses=(0, 1)), R.VALIDATOR, ""),
    "min with two users": (lambda: node_of(aten.min.dim, F, 1, uses=(0, 1)), R.VALIDATOR, ""),
    "float64": (lambda: node_of(aten.add.Tensor, F.double(), F.double()), R.DTYPE, "float64"),
    "to float64": (lambda: node_of(aten._to_copy.default, F, dtype=torch.float64), R.DTYPE, "float64"),
    "int16": (lambda: node_of(aten.add.Tensor, INTS.short(), INTS.short()), R.DTYPE, "int16"),
    "uint8": (lambda: node_of(aten.add.Tensor, INTS.byte(), INTS.byte()), R.DTYPE, "uint8"),
    "int8": (lambda: node_of(aten.add.Tensor, INTS.char(), INTS.char()), R.DTYPE, "int8"),
    "float8": (
        lambda: node_of(aten.clone.default, F.to(torch.float8_e4m3fn)), R.DTYPE, "float8_e4m3fn",
    ),
    "rank 9": (lambda: node_of(aten.relu.default, torch.rand([1] * 9)), R.RANK, "rank 9, at most 8"),
    "empty tensor": (lambda: node_of(aten.relu.default, torch.rand(0, 3)), R.LAYOUT, "empty tensor"),
    "cat of an empty tensor": (
        lambda: node_of(aten.cat.default, [F, torch.rand(0)]), R.LAYOUT, "empty tensor",
    ),
    "random numbers": (lambda: node_of(aten.rand.default, [2, 3]), R.EFFECT, "random numbers"),
    "random permutation": (lambda: node_of(aten.randperm.default, 5), R.EFFECT, "random numbers"),
    "dropout in training": (
        lambda: node_of(aten.native_dropout.default, F, 0.5, True), R.EFFECT, "random numbers",
    ),
    "attention with dropout": (
        lambda: node_of(aten.scaled_dot_product_attention.default, HEADS, HEADS, HEADS, None, 0.5),
        R.EFFECT, "random numbers",
    ),
    "topk of many": (
        lambda: node_of(aten.topk.default, torch.rand(2, 5000), 4000), R.VALIDATOR, "",
    ),
    "sort of many": (lambda: node_of(aten.sort.default, torch.rand(2, 5000)), R.VALIDATOR, ""),
    "bitwise and of integers": (
        lambda: node_of(aten.bitwise_and.Tensor, INTS, INTS), R.VALIDATOR, "",
    ),
    "bitwise or of integers": (
        lambda: node_of(aten.bitwise_or.Tensor, INTS, INTS), R.VALIDATOR, "",
    ),
    "bitwise xor with a scalar": (
        lambda: node_of(aten.bitwise_xor.Scalar, INTS, 3), R.VALIDATOR, "",
    ),
    "bitwise not of integers": (lambda: node_of(aten.bitwise_not.default, INTS), R.VALIDATOR, ""),
    "average pool with ceil_mode and divisor": (
        lambda: node_of(aten.avg_pool2d.default, IMAGE, [3, 3], [2, 2], [0, 0], True, True, 2),
        R.VALIDATOR, "",
    ),
    "max pool with dilation": (
        lambda: node_of(aten.max_pool2d.default, IMAGE, [2, 2], [1, 1], [0, 0], [2, 2]),
        R.VALIDATOR, "",
    ),
    "deconvolution with stride and dilation": (
        lambda: node_of(
            aten.convolution.default, IMAGE, torch.rand(4, 4, 3, 3), None, [2, 2], [0, 0], [2, 2],
            True, [0, 0], 1,
        ),
        R.VALIDATOR, "",
    ),
    "glu of an odd size": (
        lambda: node_of(aten.glu.default, torch.rand(0, 2)), R.LAYOUT, "empty tensor",
    ),
    "index with a mask": (lambda: node_of(aten.index_put.default, F, [BOOLS], torch.tensor(1.0), True), None, ""),
    "embedding bag with two users": (
        lambda: node_of(
            aten._embedding_bag.default, torch.rand(9, 4), INTS[0], torch.tensor([0, 2]), uses=(0, 1)
        ),
        R.LAYOUT, "empty tensor",
    ),
    "average pool in 1-D with ceil_mode and no padding counted": (
        lambda: node_of(aten.avg_pool1d.default, torch.rand(1, 4, 8), [3], [2], [1], True, False),
        R.VALIDATOR, "",
    ),
    "average pool in 3-D with a divisor": (
        lambda: node_of(
            aten.avg_pool3d.default, torch.rand(1, 2, 4, 4, 4), [3, 3, 3], [2, 2, 2], [0, 0, 0],
            True, True, 2,
        ),
        R.VALIDATOR, "",
    ),
    "max pool in 1-D with dilation": (
        lambda: node_of(aten.max_pool1d.default, torch.rand(1, 4, 8), [2], [1], [0], [2]),
        R.VALIDATOR, "",
    ),
    "max pool in 3-D with dilation": (
        lambda: node_of(
            aten.max_pool3d.default, torch.rand(1, 2, 4, 4, 4), [2, 2, 2], [1, 1, 1], [0, 0, 0],
            [2, 2, 2],
        ),
        R.VALIDATOR, "",
    ),
    "bitwise and with a scalar": (
        lambda: node_of(aten.bitwise_and.Scalar, INTS, 3), R.VALIDATOR, "",
    ),
    "bitwise or with a scalar": (
        lambda: node_of(aten.bitwise_or.Scalar, INTS, 3), R.VALIDATOR, "",
    ),
    "bitwise xor of integers": (
        lambda: node_of(aten.bitwise_xor.Tensor, INTS, INTS), R.VALIDATOR, "",
    ),
    "a scalar and integers": (
        lambda: node_of(aten.bitwise_and.Scalar_Tensor, 3, INTS), R.VALIDATOR, "",
    ),
    "diagonal of nothing": (
        lambda: node_of(aten.diagonal.default, F, 5), R.LAYOUT, "empty tensor",
    ),
    "repeat of nothing": (lambda: node_of(aten.repeat.default, F, [0, 1]), R.LAYOUT, "empty tensor"),
    "cast to complex": (
        lambda: node_of(aten._to_copy.default, F, dtype=torch.complex64), R.DTYPE, "complex64",
    ),
    "normal numbers": (lambda: node_of(aten.randn.default, [2, 3]), R.EFFECT, "random numbers"),
    "resize in place": (lambda: node_of(aten.resize_.default, F, [6]), R.MUTATES, ""),
    "copy of what overlaps": (
        lambda: node_of(aten.as_strided.default, F, [0, 2], [1, 1]), R.LAYOUT, "empty tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_names_in_the_registry_are_not_enough(name):
    from torch_tensorrt.dynamo.conversion import DYNAMO_CONVERTERS as REGISTRY

    make, reason, detail = REFUSED[name]
    node = make()
    if node.target not in REGISTRY:
        pytest.skip(f"the registry of this version has no {node.target}")
    found = verdict(node)
    assert not found.supported
    assert reason is None or found.reason is reason, str(found)
    assert found.detail
    assert detail in found.detail


def with_input(node, value):
    node.args[0].meta["val"] = value
    return node


def with_symbol(node, position):
    """Put an unbounded symbolic size in the place of an argument."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    size = mode.from_tensor(torch.rand(7, 2), static_shapes=False).shape[0]
    with node.graph.inserting_before(next(iter(node.graph.nodes))):
        symbol = node.graph.placeholder("size")
    symbol.meta["val"] = size
    args = list(node.args)
    args[position] = symbol
    node.args = tuple(args)
    return node


def test_every_op_with_a_validator_has_a_node_that_is_refused():
    from torch_tensorrt.dynamo.conversion import _ConverterRegistry

    default = _ConverterRegistry.ConverterSupport.capability_validator
    tested = {str(make().target) for make, *_ in REFUSED.values()}
    # By a mask, in test_converters_for_fixed_sizes_and_shapes_that_depend_on_data; and the next.
    tested |= {"aten.index.Tensor", "aten.cumsum.default"}
    asked = []
    for target, converters in _ConverterRegistry.DYNAMO_ATEN_CONVERTERS.items():
        if all(c.capability_validator is not default for c in converters):
            asked.append(str(target))
    assert len(asked) > 30
    untested = [name for name in asked if name not in tested]
    assert untested == [], f"no test of a node that its validator refuses: {untested}"


def test_ops_that_no_refittable_engine_holds_are_refused():
    from hierpart.backends.tensorrt.support import support_for

    support = support_for(Settings.of({**TARGET, "refittable": True}))
    refusal = support.answer(node_of(aten.cumsum.default, F, 1)).refusal
    assert refusal is not None
    assert refusal[0] is R.VALIDATOR


OTHERS = {
    "no converter": (lambda: node_of(aten.fft_fft2.default, COMPLEX), R.DTYPE, "complex64"),
    "svd": (lambda: node_of(aten._linalg_svd.default, F, uses=(0, 1, 2)), R.NOT_LISTED, "no converter"),
    "draws": (lambda: node_of(aten.bernoulli.default, F), R.EFFECT, "random numbers"),
    "sparse": (
        lambda: with_value(node_of(aten.relu.default, F), torch.eye(3).to_sparse()), R.LAYOUT,
        "sparse",
    ),
    "meta": (
        lambda: with_value(node_of(aten.relu.default, F), F.to("meta")), R.LAYOUT, "device meta",
    ),
}  # fmt: skip


def with_value(node, value):
    node.meta["val"] = value
    return node


@pytest.mark.parametrize("name", OTHERS)
def test_other_refusals_have_a_reason(name):
    make, reason, detail = OTHERS[name]
    found = verdict(make())
    assert (found.supported, found.reason) == (False, reason), str(found)
    assert detail in found.detail


def test_nodes_without_metadata_are_not_asked_about():
    graph = Graph()
    x = graph.placeholder("x")
    node = graph.call_function(aten.add.Tensor, (x, x))
    assert verdict(node).reason is R.NO_METADATA
    node.meta["val"] = F
    found = verdict(node)
    assert (found.reason, found.detail) == (R.NO_METADATA, "of its input x")
    method = graph.call_method("relu", (x,))
    assert verdict(method).reason is R.NOT_LISTED


def exported(model, args, shapes):
    program = torch.export.export(model, args, dynamic_shapes=shapes, strict=False)
    return {n.name: n for n in program.run_decompositions({}).graph.nodes}


class Dynamic(torch.nn.Module):
    def forward(self, x, index):
        found = x.gather(0, index)
        return found, x.log1p(), x.nonzero(), x[x > 0], x.relu()


def test_converters_for_fixed_sizes_and_shapes_that_depend_on_data():
    batch = torch.export.Dim("batch", min=2, max=8)
    args = (torch.rand(4, 3), torch.zeros(4, 3, dtype=torch.int64))
    nodes = exported(Dynamic(), args, ({0: batch}, {0: batch}))
    found = verdict(nodes["gather"])
    assert (found.reason, found.detail) == (R.DYNAMIC, "its converter takes fixed sizes only")
    assert verdict(nodes["nonzero"]).reason is R.DATA_DEPENDENT
    (mask,) = [n for n in nodes.values() if n.target is aten.index.Tensor]
    assert verdict(mask).reason is R.DATA_DEPENDENT
    assert verdict(nodes["relu"]).supported


class Sizes(torch.nn.Module):
    def forward(self, x):
        first, rest = x.split([1, x.size(0) - 1])
        return first, rest, x.new_ones(1).expand(x.size(0) * 3, 2), x[: x.size(0) - 1]


def test_ops_are_tried_with_the_sizes_that_they_are_given():
    batch = torch.export.Dim("batch", min=3, max=8)
    nodes = exported(Sizes(), (torch.rand(5, 3),), ({0: batch},))
    split = verdict(nodes["split_with_sizes"])
    assert not split.supported
    assert "its network cannot be made" in split.detail
    for name in ("expand", "slice_1"):
        assert verdict(nodes[name]).supported, name


def test_asking_is_linear_in_distinct_nodes():
    from hierpart.backends.tensorrt.support import support_for

    support = support_for(Settings.of({**TARGET, "workspace_size": 12345}))
    asked = []
    for layers in (3, 30):
        model = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU()) for _ in range(layers))
        )
        program = torch.export.export(model, (torch.rand(2, 4),), strict=False)
        for node in program.run_decompositions({}).graph.nodes:
            if node.op == "call_function":
                assert support.answer(node).refusal is None
        asked.append(support.asked)
    assert asked[0] > 0
    assert asked[1] <= asked[0] + 2  # the answer depends on who reads the result


def test_only_what_the_registry_refuses_is_decomposed():
    from hierpart.backends.tensorrt.lowering import lower
    from hierpart.backends.tensorrt.support import support_for
    from hierpart.graph.canonical_form import canonical

    class Mixed(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.gelu(torch.nn.functional.silu(x)).softmax(-1)

    program = torch.export.export(Mixed(), (F,), strict=False).run_decompositions({})
    block = canonical(program.graph_module).block
    before = str(block.graph)
    lowered = lower(block, {}, support_for(Settings.of(TARGET)).answer)
    targets = [n.target for n in lowered.block.graph.nodes if n.op == "call_function"]
    assert aten.gelu.default in targets  # its converter takes it whole
    assert aten.silu.default not in targets
    assert aten.sigmoid.default in targets
    assert str(block.graph) == before
    x = torch.randn(2, 3)
    torch.testing.assert_close(lowered.block(x)[0], Mixed()(x))


def test_a_decomposition_that_gives_another_result_is_not_taken(monkeypatch):
    from hierpart.backends.tensorrt import lowering

    monkeypatch.setattr(lowering, "_table", lambda op: {op: lambda x: x.sigmoid().half()})
    assert lowering.expand(node_of(aten.silu.default, F)) is None
    monkeypatch.setattr(lowering, "_table", lambda op: {op: lambda x: x.sigmoid()})
    assert lowering.expand(node_of(aten.silu.default, F)) is not None


def test_unpacking_goes_with_what_it_unpacks():
    node = node_of(aten.topk.default, F, 2, uses=(0, 1))
    items = [user for user in node.users if user.target is operator.getitem]
    assert [verdict(item).supported for item in items] == [True, True]
