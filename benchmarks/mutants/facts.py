"""Faults in what is known of a graph: effects, aliases, order, units, counts."""

from __future__ import annotations

from benchmarks.mutants.plant import Mutant

EFFECTS = (
    Mutant(
        "writes of branches are forgotten", "graph.node.effects",
        "writes=inputs + attributes if any(e.writes for e in inner) and not functional else (),",
        "writes=(),",
        "control_flow branch_effects mutation",
    ),
    Mutant(
        "random draws of branches are forgotten", "graph.node.effects",
        "aliases_tensors=shares,\n        random=any(e.random for e in inner),",
        "aliases_tensors=shares,\n        random=False,",
        "control_flow random",
    ),
    Mutant(
        "a branch's result is never its operand", "graph.node.effects",
        "shares = name not in PURE_HIGHER_ORDER or (not functional and any(e.aliases for e in "
        "inner))",
        "shares = name not in PURE_HIGHER_ORDER",
        "control_flow branch_effects mutation",
    ),
    Mutant(
        "a buffer that a branch returns is a copy", "graph.node.effects",
        "aliases_tensors=shares,",
        "",
        "control_flow branch_effects buffers mutation",
    ),
    Mutant(
        "prints and asserts of branches are forgotten", "graph.node.effects",
        "ordered=any(e.ordered for e in inner),\n        guard=any(e.guard for e in inner),",
        "",
        "control_flow branch_effects prints",
    ),
    Mutant(
        "weights read in branches are forgotten", "graph.node.effects",
        "tensors=tuple(t for e in inner for t in e.tensors),",
        "",
        "control_flow branch_effects buffers mutation",
    ),
    Mutant(
        "in-place modules write nothing", "graph.node.effects",
        'writes=inputs if any(getattr(m, "inplace", False) for m in parts) else (),',
        "writes=(),",
        "modules mutation",
    ),
    Mutant(
        "dropout modules draw nothing", "graph.node.effects",
        "random=any(_is_random_module(m) for m in training)\n        or ",
        "random=",
        "modules random",
    ),
    Mutant(
        "running statistics of modules are not written", "graph.node.effects",
        "written_tensors=tuple(b for m in training for b in _statistics(m)),",
        "",
        "modules",
    ),
    Mutant(
        "nested names are looked up at the root", "graph.node.effects",
        'for part in path.split("."):',
        'for part in path.split(".")[-1:]:',
    ),
    Mutant(
        "operators write nothing", "graph.node.op_effects",
        "writes = tuple(n for a in schema.writes for n in _nodes(_argument(node, schema, a)))",
        "writes: Any = ()",
    ),
    Mutant(
        "views are no aliases", "graph.node.op_effects",
        "aliases = tuple(n for a in schema.aliases for n in _nodes(_argument(node, schema, a)))",
        "aliases: Any = ()",
        "views mutation",
    ),
    Mutant(
        "compositions never return a view", "graph.node.op_effects",
        "composite = not aliases and _is_composite(op)",
        "composite = False",
        "views mutation",
    ),
    Mutant(
        "operators draw nothing", "graph.node.op_effects",
        'random = torch.Tag.nondeterministic_seeded in op.tags or "generator" in names',
        "random = False",
    ),
    Mutant(
        "in-place operators write nothing", "graph.node.op_effects",
        "if target in INPLACE_OPERATORS:",
        "if False:",
        "mutation",
    ),
    Mutant(
        "out= writes nothing", "graph.node.op_effects",
        'written = _nodes(node.kwargs.get("out"))',
        "written: Any = ()",
        "mutation",
    ),
    Mutant(
        "inplace=True writes nothing", "graph.node.op_effects",
        'if flags.get("inplace") or (',
        "if (",
        "mutation",
    ),
    Mutant(
        "regions may be left by their nodes", "graph.node.op_effects",
        "if name in REGION_MARKERS:\n        return Effect(barrier=True)",
        "if name in REGION_MARKERS:\n        return Effect(ordered=True)",
        "regions",
    ),
    Mutant(
        "asserts guard nothing", "graph.node.op_effects",
        'if name.startswith("_check") or "assert" in name:\n        return Effect(guard=True, '
        "ordered=True)",
        'if name.startswith("_check") or "assert" in name:\n        return PURE',
        "asserts",
    ),
    Mutant(
        "prints have no order", "graph.node.op_effects",
        "if target is builtins.print:\n        return Effect(ordered=True)",
        "if target is builtins.print:\n        return PURE",
        "prints",
    ),
    Mutant(
        "an item of a tensor is a copy", "graph.node.op_effects",
        "        return Effect(aliases=_nodes(node.args[:1]))\n    if name in REGION_MARKERS:",
        "        return PURE\n    if name in REGION_MARKERS:",
        "python mutation",
    ),
    Mutant(
        "batch_norm in training writes nothing", "graph.node.op_effects",
        'statistics = ("running_mean", "running_var") if name in STATISTICS_WRITERS else ()',
        "statistics: Any = ()",
        "mutation buffers",
    ),
    Mutant(
        "in-place reshapes leave sizes as they are", "graph.node.op_effects",
        "writes_metadata=bool(writes) and torch.Tag.inplace_view in op.tags,",
        "writes_metadata=False,",
        "reshape_in_place sizes",
    ),
    Mutant(
        "two random ops may be swapped", "graph.node.op_effects",
        "self.writes or self.random or self.ordered",
        "self.writes or self.ordered",
        "random",
    ),
)  # fmt: skip

ORDER = (
    Mutant(
        "no edge from a read to the write after it", "graph.hazards",
        "before += readers.pop(c, ())",
        "readers.pop(c, ())",
    ),
    Mutant(
        "no edge from a write to what follows it", "graph.hazards",
        "before.append(writer[c])",
        "pass",
    ),
    Mutant(
        "effects keep no order", "graph.hazards",
        "before.append(effect_before)",
        "pass",
    ),
    Mutant(
        "nothing waits for an assertion", "graph.hazards",
        "before.append(guard)",
        "pass",
        "asserts indexing",
    ),
    Mutant(
        "nodes may move down across a barrier", "graph.hazards",
        "before += since_barrier",
        "before += ()",
        "regions",
    ),
    Mutant(
        "nodes may move up across a barrier", "graph.hazards",
        "before = [barrier] if barrier >= 0 else []",
        "before: list[int] = []",
        "regions",
    ),
    Mutant(
        "two inputs are never one tensor", "graph.hazards",
        "self.join(inputs[0], i)",
        "pass",
        "shared_inputs mutation",
    ),
    Mutant(
        "two names of one storage are two storages", "graph.hazards",
        "self.join(self.of_node[node], self.tensor(value))",
        "self.tensor(value)",
        "buffers mutation",
    ),
    Mutant(
        "what may be a view is a copy", "graph.hazards",
        "        if effect.maybe_aliases:\n            shared +=",
        "        if False:\n            shared +=",
        "views python mutation",
    ),
    Mutant(
        "without metadata nothing is a view", "graph.hazards",
        "return kind_of(source) not in (Kind.SCALAR, Kind.SIZES, Kind.NONE)",
        "return False",
        "views python mutation",
    ),
    Mutant(
        "sizes are read across an in-place reshape", "graph.crossing",
        "again = pure and not classes.changes_shape(inputs)",
        "again = pure",
        "reshape_in_place sizes",
    ),
    Mutant(
        "keyword operands are no dependencies", "graph.facts",
        "tuple(index[m] for m in n.all_input_nodes if m in index)",
        "tuple(index[m] for m in n.args if isinstance(m, Node) and m in index)",
        "kwargs",
    ),
    Mutant(
        "what a size is computed from may come later", "graph.crossing",
        "(edges[i] if recomputable[i] else (i,))",
        "(() if recomputable[i] else (i,))",
        "sizes dynamic",
    ),
    Mutant(
        "sizes that cannot be read again cross whole", "graph.crossing",
        "crosses = kind in CROSSING and not _stays(nodes[i], index, kinds, recomputable)",
        "crosses = kind in CROSSING",
        "reshape_in_place sizes",
    ),
    Mutant(
        "a getitem may be parted from its tuple", "graph.crossing",
        "                pairs.append((i, j))",
        "                pass",
        "multi_output",
    ),
    Mutant(
        "only the top level is counted", "graph.facts",
        "counts.append(sum(count_compute(body, known) for _, body in branches[i]))",
        "counts.append(1)",
        "control_flow",
    ),
    Mutant(
        "getitems and sizes count as compute ops", "graph.facts",
        "counts.append(0 if uncounted[i] else 1)",
        "counts.append(1)",
    ),
    Mutant(
        "units that wait for each other are not joined", "graph.units",
        "cycle = _first_cycle(preds, units)",
        "cycle: list[int] = []",
        "multi_output mutation views",
    ),
)  # fmt: skip

FACTS = (*EFFECTS, *ORDER)
"""The faults of this module."""
