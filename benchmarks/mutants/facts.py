"""Faults in what is known of a graph: effects, aliases, order, units, counts."""

from __future__ import annotations

from benchmarks.mutants.plant import Mutant

EFFECTS = (
    Mutant(
        "writes of branches are forgotten", "effects",
        "writes=inputs + attributes if any(e.writes for e in inner) and not functional else (),",
        "writes=(),",
        "control_flow branch_effects mutation",
    ),
    Mutant(
        "random draws of branches are forgotten", "effects",
        "aliases_tensors=shares,\n        random=any(e.random for e in inner),",
        "aliases_tensors=shares,\n        random=False,",
        "control_flow random",
    ),
    Mutant(
        "a branch's result is never its operand", "effects",
        "shares = name not in PURE_HIGHER_ORDER or (not functional and any(e.aliases for e in "
        "inner))",
        "shares = name not in PURE_HIGHER_ORDER",
        "control_flow branch_effects mutation",
    ),
    Mutant(
        "a buffer that a branch returns is a copy", "effects",
        "aliases_tensors=shares,",
        "",
        "control_flow branch_effects buffers mutation",
    ),
    Mutant(
        "prints and asserts of branches are forgotten", "effects",
        "ordered=any(e.ordered for e in inner),\n        guard=any(e.guard for e in inner),",
        "",
        "control_flow branch_effects prints",
    ),
    Mutant(
        "weights read in branches are forgotten", "effects",
        "tensors=tuple(t for e in inner for t in e.tensors),",
        "",
        "control_flow branch_effects buffers mutation",
    ),
    Mutant(
        "in-place modules write nothing", "effects",
        'writes=inputs if any(getattr(m, "inplace", False) for m in parts) else (),',
        "writes=(),",
        "modules mutation",
    ),
    Mutant(
        "dropout modules draw nothing", "effects",
        "random=any(_is_random_module(m) for m in training)\n        or ",
        "random=",
        "modules random",
    ),
    Mutant(
        "running statistics of modules are not written", "effects",
        "written_tensors=tuple(b for m in training for b in _statistics(m)),",
        "",
        "modules",
    ),
    Mutant(
        "nested names are looked up at the root", "effects",
        'for part in path.split("."):',
        'for part in path.split(".")[-1:]:',
    ),
    Mutant(
        "operators write nothing", "opeffects",
        "writes = tuple(n for a in schema.writes for n in _nodes(_argument(node, schema, a)))",
        "writes: Any = ()",
    ),
    Mutant(
        "views are no aliases", "opeffects",
        "aliases = tuple(n for a in schema.aliases for n in _nodes(_argument(node, schema, a)))",
        "aliases: Any = ()",
        "views mutation",
    ),
    Mutant(
        "compositions never return a view", "opeffects",
        "composite = not aliases and _is_composite(op)",
        "composite = False",
        "views mutation",
    ),
    Mutant(
        "operators draw nothing", "opeffects",
        'random = torch.Tag.nondeterministic_seeded in op.tags or "generator" in names',
        "random = False",
    ),
    Mutant(
        "in-place operators write nothing", "opeffects",
        "if target in INPLACE_OPERATORS:",
        "if False:",
        "mutation",
    ),
    Mutant(
        "out= writes nothing", "opeffects",
        'written = _nodes(node.kwargs.get("out"))',
        "written: Any = ()",
        "mutation",
    ),
    Mutant(
        "inplace=True writes nothing", "opeffects",
        'if flags.get("inplace") or (',
        "if (",
        "mutation",
    ),
    Mutant(
        "regions may be left by their nodes", "opeffects",
        "if name in REGION_MARKERS:\n        return Effect(barrier=True)",
        "if name in REGION_MARKERS:\n        return Effect(ordered=True)",
        "regions",
    ),
    Mutant(
        "asserts guard nothing", "opeffects",
        'if name.startswith("_check") or "assert" in name:\n        return Effect(guard=True, '
        "ordered=True)",
        'if name.startswith("_check") or "assert" in name:\n        return PURE',
        "asserts",
    ),
    Mutant(
        "prints have no order", "opeffects",
        "if target is builtins.print:\n        return Effect(ordered=True)",
        "if target is builtins.print:\n        return PURE",
        "prints",
    ),
    Mutant(
        "an item of a tensor is a copy", "opeffects",
        "        return Effect(aliases=_nodes(node.args[:1]))\n    if name in REGION_MARKERS:",
        "        return PURE\n    if name in REGION_MARKERS:",
        "python mutation",
    ),
    Mutant(
        "batch_norm in training writes nothing", "opeffects",
        'statistics = ("running_mean", "running_var") if name in STATISTICS_WRITERS else ()',
        "statistics: Any = ()",
        "mutation buffers",
    ),
    Mutant(
        "in-place reshapes leave sizes as they are", "opeffects",
        "writes_metadata=bool(writes) and torch.Tag.inplace_view in op.tags,",
        "writes_metadata=False,",
        "reshape_in_place sizes",
    ),
    Mutant(
        "two random ops may be swapped", "opeffects",
        "self.writes or self.random or self.ordered",
        "self.writes or self.ordered",
        "random",
    ),
)  # fmt: skip

ORDER = (
    Mutant(
        "no edge from a read to the write after it", "hazards",
        "before += readers.pop(c, ())",
        "readers.pop(c, ())",
    ),
    Mutant(
        "no edge from a write to what follows it", "hazards",
        "before.append(writer[c])",
        "pass",
    ),
    Mutant(
        "effects keep no order", "hazards",
        "before.append(effect_before)",
        "pass",
    ),
    Mutant(
        "nothing waits for an assertion", "hazards",
        "before.append(guard)",
        "pass",
        "asserts indexing",
    ),
    Mutant(
        "nodes may move down across a barrier", "hazards",
        "before += since_barrier",
        "before += ()",
        "regions",
    ),
    Mutant(
        "nodes may move up across a barrier", "hazards",
        "before = [barrier] if barrier >= 0 else []",
        "before: list[int] = []",
        "regions",
    ),
    Mutant(
        "two inputs are never one tensor", "hazards",
        "self.join(inputs[0], i)",
        "pass",
        "shared_inputs mutation",
    ),
    Mutant(
        "two names of one storage are two storages", "hazards",
        "self.join(self.of_node[node], self.tensor(value))",
        "self.tensor(value)",
        "buffers mutation",
    ),
    Mutant(
        "what may be a view is a copy", "hazards",
        "        if effect.maybe_aliases:\n            shared +=",
        "        if False:\n            shared +=",
        "views python mutation",
    ),
    Mutant(
        "without metadata nothing is a view", "hazards",
        "return kind_of(source) not in (Kind.SCALAR, Kind.SIZES, Kind.NONE)",
        "return False",
        "views python mutation",
    ),
    Mutant(
        "sizes are read across an in-place reshape", "crossing",
        "again = pure and not classes.changes_shape(inputs)",
        "again = pure",
        "reshape_in_place sizes",
    ),
    Mutant(
        "keyword operands are no dependencies", "graph",
        "tuple(index[m] for m in n.all_input_nodes if m in index)",
        "tuple(index[m] for m in n.args if isinstance(m, Node) and m in index)",
        "kwargs",
    ),
    Mutant(
        "what a size is computed from may come later", "crossing",
        "(edges[i] if recomputable[i] else (i,))",
        "(() if recomputable[i] else (i,))",
        "sizes dynamic",
    ),
    Mutant(
        "sizes that cannot be read again cross whole", "crossing",
        "crosses = kind in CROSSING and not _stays(nodes[i], index, kinds, recomputable)",
        "crosses = kind in CROSSING",
        "reshape_in_place sizes",
    ),
    Mutant(
        "a getitem may be parted from its tuple", "crossing",
        "                pairs.append((i, j))",
        "                pass",
        "multi_output",
    ),
    Mutant(
        "only the top level is counted", "graph",
        "counts.append(sum(count_compute(body, known) for _, body in branches[i]))",
        "counts.append(1)",
        "control_flow",
    ),
    Mutant(
        "getitems and sizes count as compute ops", "graph",
        "counts.append(0 if uncounted[i] else 1)",
        "counts.append(1)",
    ),
    Mutant(
        "units that wait for each other are not joined", "units",
        "cycle = _first_cycle(preds, units)",
        "cycle: list[int] = []",
        "multi_output mutation views",
    ),
)  # fmt: skip

FACTS = (*EFFECTS, *ORDER)
"""The faults of this module."""
