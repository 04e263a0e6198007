"""``hierpart.compile`` and ``torch.compile`` on models that people have."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.export import Dim

import hierpart
from hierpart.errors import InputTypeError
from tests.doubles import same

PRIORITY = ["inductor"]


def close(left, right, tolerance=1e-4):
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


def states_close(left, right):
    a, b = left.state_dict(), right.state_dict()
    assert list(a) == list(b)
    for name in a:
        close(a[name], b[name])


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


@pytest.mark.inductor
def test_a_convolution_net_in_training_mode_updates_its_statistics():
    torch.manual_seed(0)
    model = ConvNet().train()
    reference = copy.deepcopy(model)
    x = torch.randn(4, 3, 10, 10)
    module = hierpart.compile(model, (x,), backend_priority=PRIORITY)
    assert [b.backend for b in module.plan] == ["inductor"]
    for _ in range(3):
        x = torch.randn(4, 3, 10, 10)
        with torch.no_grad():
            close(module(x), reference(x))
    states_close(module, reference)
    assert int(module.state_dict()["stem.1.num_batches_tracked"]) == 3
    assert "inductor" in str(module.report)


class Tagger(nn.Module):
    """A dictionary out, keyword inputs, an optional mask, a dynamic batch."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(self, tokens, *, scale, mask=None):
        x = self.mix(self.embed(tokens)) * scale["by"]
        if mask is not None:
            x = x.masked_fill(mask.unsqueeze(-1), 0.0)
        best = x.softmax(-1).topk(2, dim=-1)
        return {"scores": best.values, "places": best.indices, "batch": tokens.shape[0], "x": x}


@pytest.mark.inductor
def test_a_dictionary_of_outputs_with_keywords_and_a_dynamic_batch():
    torch.manual_seed(0)
    model = Tagger().eval()

    def inputs(n):
        tokens = torch.randint(20, (n, 6))
        return tokens, {"scale": {"by": torch.rand(1)}, "mask": torch.rand(n, 6) > 0.5}

    tokens, keywords = inputs(4)
    batch = Dim("batch", min=1, max=64)
    module = hierpart.compile(
        model, (tokens,), keywords, backend_priority=PRIORITY,
        torch_executed_ops=["torch.ops.aten.topk.default"], min_block_size=2,
        dynamic_shapes={"tokens": {0: batch}, "scale": {"by": None}, "mask": {0: batch}},
    )  # fmt: skip
    assert [b.backend for b in module.plan] == ["inductor", "eager"]
    for n in (4, 1, 13, 64):
        tokens, keywords = inputs(n)
        with torch.no_grad():
            result, expected = module(tokens, **keywords), model(tokens, **keywords)
        assert list(result) == list(expected)
        assert result["batch"] == n
        close(result["x"], expected["x"])
        assert torch.equal(result["places"], expected["places"])


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        n, t, width = x.shape
        parts = self.project(self.first(x)).view(n, t, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, width))
        return x + self.mlp(self.second(x))


@pytest.mark.inductor
def test_a_transformer_whose_layers_share_their_code():
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(16, 2) for _ in range(4))).eval()
    shapes = ({0: Dim("n", min=1, max=16), 1: Dim("t", min=1, max=32)},)
    module = hierpart.compile(
        model, (torch.randn(2, 5, 16),), dynamic_shapes=shapes, backend_priority=PRIORITY,
        min_block_size=1, torch_executed_ops=["torch.ops.aten.gelu.default"],
    )  # fmt: skip
    statuses = [o.status for o in module.report.outcomes if o.planned == "inductor"]
    assert len(statuses) == 5
    assert statuses.count("shared") >= 2
    for n, t in ((2, 5), (1, 1), (16, 32), (3, 7)):
        x = torch.randn(n, t, 16)
        with torch.no_grad():
            close(module(x), model(x))


@pytest.mark.parametrize("decompositions", ["minimal", "core_aten"])
def test_decompositions_reach_as_far_as_the_backends_want(decompositions):
    model, x = Layer(16, 2).eval(), torch.randn(2, 5, 16)
    ops = set(
        hierpart.explain(
            model, (x,), backend_priority=["inductor"], decompositions=decompositions
        ).plan.ops.values()
    )
    attention = {op for op in ops if "scaled_dot_product_attention" in op}
    assert attention, "Inductor takes attention whole"
    whole = {op for op in ops if "aten.layer_norm" in op or "aten.linear" in op}
    assert bool(whole) == (decompositions == "minimal")
    ops = set(
        hierpart.explain(model, (x,), backend_priority=[], decompositions="core_aten")
        .plan.ops.values()
    )  # fmt: skip
    assert not any("scaled_dot_product_attention.default" in op for op in ops)


def test_what_is_no_model_is_refused_with_what_to_call():
    with pytest.raises(InputTypeError, match=r"torch\.compile\(f, backend='hierpart'\)"):
        hierpart.compile(lambda x: x, (torch.ones(1),), backend_priority=[])


def test_an_exported_program_and_its_module_give_the_same():
    model, x = ConvNet().eval(), torch.randn(2, 3, 8, 8)
    program = torch.export.export(model, (x,), strict=False)
    with torch.no_grad():
        expected = model(x)
    for given in (program, program.module(), model):
        same(hierpart.compile(given, (x,), backend_priority=[])(x), expected)


@pytest.mark.inductor
def test_training_through_torch_compile_equals_eager():
    torch.manual_seed(0)
    model = ConvNet()
    reference = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="hierpart", options={"backend_priority": PRIORITY})
    optimisers = [torch.optim.SGD(m.parameters(), 0.05) for m in (model, reference)]
    for _ in range(3):
        x, target = torch.randn(4, 3, 10, 10), torch.randint(5, (4,))
        losses = []
        for network, optimiser in zip((compiled, reference), optimisers, strict=True):
            loss = nn.functional.cross_entropy(network(x), target)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            losses.append(loss.detach())
        close(*losses)
    states_close(model, reference)


def compiled_by_name(model, **options):
    torch._dynamo.reset()
    return torch.compile(model, backend="hierpart", options=options)


@pytest.mark.inductor
@pytest.mark.parametrize("grad", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_resnet18_through_torch_compile(grad):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    compiled = compiled_by_name(model)
    x = torch.randn(2, 3, 64, 64)
    with torch.set_grad_enabled(grad):
        close(compiled(x), model(x), 1e-3)


@pytest.mark.slow
@pytest.mark.inductor
def test_bert_through_torch_compile():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        vocab_size=200, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    compiled = compiled_by_name(model)
    with torch.no_grad():
        for size in ((2, 16), (3, 24)):
            tokens = torch.randint(200, size)
            mask = torch.ones(size, dtype=torch.int64)
            mask[0, 5:] = 0
            result = compiled(input_ids=tokens, attention_mask=mask)
            expected = model(input_ids=tokens, attention_mask=mask)
            close(result.last_hidden_state, expected.last_hidden_state, 1e-3)
            close(result.pooler_output, expected.pooler_output, 1e-3)
