"""Faults in the plan and in the split: owners, blocks, sizes, boundaries, modules."""

from __future__ import annotations

from benchmarks.mutants.plant import Mutant

PLAN = (
    Mutant(
        "the last backend that says yes owns a node", "partition.owners.assignment",
        "owner = [c[0] if c else EAGER for c in candidates]",
        "owner = [c[-1] if c else EAGER for c in candidates]",
    ),
    Mutant(
        "one refused node of a unit does not count", "partition.owners.assignment",
        "_agree(facts, verdicts, unit, column)\n        first",
        "pass\n        first",
    ),
    Mutant(
        "torch_executed_ops is ignored", "partition.owners.tester",
        "if self._executed.matches(names):",
        "if False:",
    ),
    Mutant(
        "verdicts are kept by name, whoever is asked", "partition.owners.tester",
        "found = tuple(self._ask(b, source, node, names) for b, source in self._sources)",
        "found = tuple(self._ask(b, self._sources[0][1], node, names) for b, _ in self._sources)",
    ),
    Mutant(
        "the mode of an op is ignored", "partition.owners.tester",
        'mode = mode_of(self.control_flow, op_of(node), backend) if op_of(node) else "auto"',
        'mode = "auto"',
        "control_flow",
    ),
    Mutant(
        "undersized blocks stay", "partition.clustering.merging",
        "if not small and thorough:",
        "if True:",
    ),
    Mutant(
        "moves are not told", "partition.clustering.merging",
        "moves += _demote(facts",
        "_demote(facts",
    ),
    Mutant(
        "small blocks skip their next backend", "partition.clustering.merging",
        "return rest[0] if rest else EAGER",
        "return EAGER",
    ),
    Mutant(
        "any graph is exempt from the minimum", "partition.clustering.merging",
        "if any(size and o == EAGER for size, o in zip(sizes, owner, strict=True)):",
        "if False:",
    ),
    Mutant(
        "a unit runs as early as its first input", "partition.clustering.placement",
        "following[max([block_of[p] for p in preds[u]], default=0)][owner[u]]",
        "following[min([block_of[p] for p in preds[u]], default=0)][owner[u]]",
    ),
    Mutant(
        "units sink below what reads them", "partition.clustering.placement",
        "                readers[v][there] = readers[v].get(there, 0) + 1\n"
        "        for p in preds[u]:\n            limit[p] = min(limit[p], block_of[u])",
        "                readers[v][there] = readers[v].get(there, 0) + 1",
    ),
    Mutant(
        "blocks of one owner are merged across others", "partition.clustering.placement",
        "index += owner_of[b] != before",
        "index += b not in number and owner_of[b] not in [owner_of[o] for o in number]",
    ),
    Mutant(
        "groups forget all but one predecessor", "partition.clustering.bounds",
        "before = _direct({group_of[p] for p in preds[u]}, group_preds)",
        "before = _direct({group_of[p] for p in preds[u][:1]}, group_preds)",
    ),
    Mutant(
        "the plan names its blocks' nodes in reverse", "partition.plan_assembly",
        "nodes=tuple(facts.nodes[i].name for i in w.members),",
        "nodes=tuple(facts.nodes[i].name for i in reversed(w.members)),",
    ),
    Mutant(
        "attributes list only their first block", "partition.plan_assembly",
        "blocks = tuple(sorted({block_of[facts.index[u]] for u in users}))",
        "blocks = tuple(sorted({block_of[facts.index[u]] for u in users[:1]}))",
    ),
    Mutant(
        "branches are never looked into", "partition.pipeline",
        "if backends[block_of[i]] != EAGER or not is_recursed(options.control_flow, node):",
        "if True:",
        "control_flow",
    ),
    Mutant(
        "opaque branches are split", "graph.node.control_flow",
        'return plain and mode_of(control_flow, op) != "opaque"',
        "return plain",
        "control_flow",
    ),
)  # fmt: skip

WIRING = (
    Mutant(
        "a size is read from the first dimension", "partition.splitting.wiring",
        "at_hand.setdefault(expression, (port, dim))",
        "at_hand.setdefault(expression, (port, 0))",
        "sizes dynamic views",
    ),
    Mutant(
        "a written attribute is held by each block", "partition.splitting.wiring",
        "shared = set(facts.written_attributes)",
        "shared: set[str] = set()",
        "buffers mutation",
    ),
    Mutant(
        "inputs come in the order of a set", "partition.splitting.wiring",
        "d.backend, tuple(d.members), tuple(d.inputs), d.sizes,",
        "d.backend, tuple(d.members), tuple(set(d.inputs)), d.sizes,",
    ),
    Mutant(
        "tuples cross whole", "partition.splitting.ports",
        "if kind in (Kind.TUPLE, Kind.SIZES) and can_flatten(node):",
        "if False:",
        "multi_output tuple_outputs",
    ),
    Mutant(
        "None crosses as a value", "partition.splitting.ports",
        "    if kind is Kind.NONE:\n        return None\n",
        "",
        "multi_output mutation",
    ),
)  # fmt: skip

SPLIT = (
    Mutant(
        "weights are copied", "partition.splitting.block_module",
        "_copy_attr(source, copy, target)",
        '__import__("copy").deepcopy(source), _copy_attr(__import__("copy").deepcopy(source), '
        "copy, target)",
        "parameters buffers",
    ),
    Mutant(
        "keyword arguments are forgotten", "partition.splitting.block_module",
        "kwargs = map_aggregate(kwargs, self.value)",
        "kwargs = {}",
    ),
    Mutant(
        "keyword arguments keep the input's nodes", "partition.splitting.block_module",
        "kwargs = map_aggregate(kwargs, self.value)",
        "kwargs = dict(kwargs)",
    ),
    Mutant(
        "nodes of a block run in reverse", "partition.splitting.block_module",
        "for node in members:\n            self.value(node)",
        "for node in reversed(members):\n            self.value(node)",
    ),
    Mutant(
        "get_attr comes before placeholders", "partition.splitting.block_module",
        "        for port in self.wiring.inputs:\n            made",
        "        for i in self.wiring.members:\n            for used in self.facts.nodes[i]."
        'all_input_nodes:\n                if used.op == "get_attr":\n                    '
        "self.value(used)\n        for port in self.wiring.inputs:\n            made",
    ),
    Mutant(
        "truth values are baked in", "partition.splitting.block_module",
        "        if leaf not in self.env:\n",
        '        if type(leaf.meta.get("val")) is bool:\n            return leaf.meta["val"]\n'
        "        if leaf not in self.env:\n",
        "scalars",
    ),
    Mutant(
        "sizes are baked in", "partition.splitting.block_module",
        "        source, dim = self.wiring.sizes[node]\n",
        '        source, dim = self.wiring.sizes[node]\n        hint = node.meta["val"].node.hint\n'
        "        if hint is not None:\n            return hint\n",
        "sizes dynamic",
    ),
    Mutant(
        "a size comes from the last dimension", "partition.splitting.block_module",
        "(self.ports[source], dim)",
        "(self.ports[source], -1)",
        "sizes dynamic",
    ),
    Mutant(
        "lists become tuples", "partition.splitting.block_module",
        "return made if type(value) is list else tuple(made)",
        "return tuple(made)",
        "multi_output containers tuple_outputs",
    ),
    Mutant(
        "metadata of items is dropped", "partition.splitting.block_module",
        'return {**{k: v for k, v in port.node.meta.items() if k in kept}, "val": port.value}',
        "return {}",
    ),
    Mutant(
        "blocks with effects look pure", "partition.splitting.block_module",
        "effects = any(facts.effects[i].is_effect or facts.effects[i].proved for i in wiring."
        "members)",
        "effects = False",
    ),
    Mutant(
        "blocks are in training mode", "partition.splitting.block_module",
        '"training": source.training, IMPURE',
        '"training": not source.training, IMPURE',
    ),
    Mutant(
        "branches are not put in", "partition.splitting.block_module",
        "        if target in branches:\n",
        "        if False:\n",
        "control_flow",
    ),
    Mutant(
        "every branch is the first one", "partition.splitting.block_module",
        "set_branch(module, source, target, branches[target])",
        "set_branch(module, source, target, next(iter(branches.values())))",
        "control_flow",
    ),
    Mutant(
        "a shared branch is split for each op", "partition.pipeline",
        "            if key not in done:\n",
        "            if True:\n",
        "control_flow",
    ),
    Mutant(
        "metadata is dropped", "graph.construction",
        "node.meta.update(meta)",
        "pass",
    ),
    Mutant(
        "metadata is shared with the input", "graph.construction",
        "node.meta.update(meta)",
        'node.meta = meta; meta["hierpart_block"] = name',
    ),
    Mutant(
        "names get a suffix", "graph.construction",
        "    if name in namespace._used_names:\n",
        '    if op == "call_function":\n        name += "_copy"\n'
        "    if name in namespace._used_names:\n",
    ),
    Mutant(
        "defaults of arguments are lost", "partition.splitting.parent_module",
        "graph, node.name, node.op, node.target, node.args, {}, node.type, node.meta",
        "graph, node.name, node.op, node.target, (), {}, node.type, node.meta",
        "scalars",
    ),
    Mutant(
        "unused inputs are dropped", "partition.splitting.parent_module",
        'inputs = [n for n in source.nodes if n.op == "placeholder"]',
        'inputs = [n for n in source.nodes if n.op == "placeholder" and n.users]',
    ),
    Mutant(
        "every output is the block's first", "partition.splitting.parent_module",
        "call_function\", operator.getitem, (call, i), meta=meta)",
        "call_function\", operator.getitem, (call, 0), meta=meta)",
    ),
    Mutant(
        "a Size leaves as a tuple", "partition.splitting.parent_module",
        "if kind not in (tuple, list):",
        "if False:",
        "sizes containers",
    ),
    Mutant(
        "the calling convention is lost", "partition.splitting.parent_module",
        "graph.set_codegen(copy.copy(source._codegen))",
        "pass",
        "pytree",
    ),
    Mutant(
        "the plan is hung on the input", "partition.splitting.parent_module",
        'parent.meta["hierpart"] = plan',
        'source.meta["hierpart"] = parent.meta["hierpart"] = plan',
    ),
    Mutant(
        "blocks are called in reverse", "partition.splitting.parent_module",
        "for block, wires in zip(plan.blocks, wiring, strict=True):\n        args",
        "for block, wires in reversed(list(zip(plan.blocks, wiring))):\n        args",
    ),
)  # fmt: skip

SPLITS = (*PLAN, *WIRING, *SPLIT)
"""The faults of this module."""
