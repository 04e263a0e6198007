"""Real networks with random weights, exported to aten graphs, and seeded maps from op to owner.

The networks are those of the block-count comparison: four from torchvision and two from
transformers with small configurations. Weights are random, inputs are as small as the network
allows; every graph is ``torch.export`` (``strict=False``), ``run_decompositions()``,
``.module()``, without the call that checks input guards.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import torch
from torch.fx import GraphModule, Node

Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]

OWNERS = ("tensorrt", "inductor", "eager")
WEIGHTS = (0.6, 0.25, 0.15)
SEEDS = (0, 1, 2)
ALWAYS_TENSORRT = frozenset(
    f"torch.ops.aten.{name}.default" for name in ("convolution", "mm", "addmm", "bmm", "baddbmm")
)


def googlenet() -> Made:
    """GoogLeNet without its auxiliary heads: branches that are concatenated."""
    from torchvision.models import googlenet as build

    return build(weights=None, init_weights=False, aux_logits=False), (torch.randn(1, 3, 64, 64),)


def inception_v3() -> Made:
    """Inception v3 without its auxiliary head: deeper and more unequal branches."""
    from torchvision.models import inception_v3 as build

    return build(weights=None, init_weights=False, aux_logits=False), (torch.randn(1, 3, 80, 80),)


def swin_t() -> Made:
    """Swin-T at 224 pixels, where its shifted windows really shift: many views and rolls."""
    from torchvision.models import swin_t as build

    return build(weights=None), (torch.randn(1, 3, 224, 224),)


def convnext_tiny() -> Made:
    """ConvNeXt-Tiny: one long chain of residual blocks."""
    from torchvision.models import convnext_tiny as build

    return build(weights=None), (torch.randn(1, 3, 64, 64),)


def llama() -> Made:
    """A 4-layer Llama with grouped-query attention, rotary embedding and a causal mask."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
    )
    return LlamaForCausalLM(config), (torch.randint(0, 256, (1, 16)),)


def bert() -> Made:
    """A 4-layer BERT encoder with its pooler."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    return BertModel(config), (torch.randint(0, 256, (1, 16)),)


BUILDERS: dict[str, Callable[[], Made]] = {
    build.__name__: build for build in (googlenet, inception_v3, swin_t, convnext_tiny, llama, bert)
}
MODELS = tuple(BUILDERS)
PACKAGE = {name: "transformers" if name in ("llama", "bert") else "torchvision" for name in MODELS}


@functools.cache
def example(name: str) -> Made:
    """Return the network in eval mode and its example arguments; one object a process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, args = BUILDERS[name]()
    return model.eval(), args


@functools.cache
def exported(name: str) -> GraphModule:
    """Return the network's aten graph; one object a process, so callers must not change it."""
    model, args = example(name)
    gm = torch.export.export(model, args, strict=False).run_decompositions().module()
    return without_guards(gm)


def without_guards(gm: GraphModule) -> GraphModule:
    """Remove the ``_guards_fn`` call of ``ExportedProgram.module()`` in place and return ``gm``."""
    for node in list(gm.graph.nodes):
        if node.op == "call_module" and str(node.target).startswith("_guards_fn"):
            gm.graph.erase_node(node)
            gm.delete_submodule(node.target)
    gm.recompile()
    return gm


def twin(gm: GraphModule) -> GraphModule:
    """Return an independent graph over the same tensors, for code that changes what it is given."""
    import copy

    copied = GraphModule(gm, copy.deepcopy(gm.graph), type(gm).__name__)
    copied.train(gm.training)
    copied.meta = dict(gm.meta)
    return copied


def op_name(node: Node) -> str:
    """Return the name of an operator as support maps spell it, ``torch.ops.aten.relu.default``."""
    return f"torch.ops.{node.target}"


def op_names(gm: GraphModule) -> list[str]:
    """Return the sorted names of the graph's distinct operators, ``getitem`` left out."""
    ops = torch._ops.OpOverload
    return sorted({op_name(n) for n in gm.graph.nodes if isinstance(n.target, ops)})


def op_map(gm: GraphModule, seed: int) -> dict[str, set[str]]:
    """Return a support map that gives each distinct op to one owner, the same for one seed.

    TensorRT gets an op with probability .6, Inductor with .25, and with .15 no backend has it;
    convolutions and matrix products always go to TensorRT.
    """
    rng = random.Random(seed)
    support: dict[str, set[str]] = {owner: set() for owner in OWNERS}
    for name in op_names(gm):
        owner = rng.choices(OWNERS, WEIGHTS)[0]
        support["tensorrt" if name in ALWAYS_TENSORRT else owner].add(name)
    return {owner: support[owner] for owner in OWNERS if owner != "eager"}
