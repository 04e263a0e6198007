"""Faults in the plan and in the split: owners, blocks, sizes, boundaries, modules."""

from __future__ import annotations

from benchmarks.mutants.plant import Mutant

PLAN = (
    Mutant(
        "the last backend that says yes owns a node", "assign",
        "owner = [c[0] if c else EAGER for c in candidates]",
        "owner = [c[-1] if c else EAGER for c in candidates]",
    ),
    Mutant(
        "one refused node of a unit does not count", "assign",
        "_agree(facts, verdicts, unit, column)\n        first",
        "pass\n        first",
    ),
    Mutant(
        "torch_executed_ops is ignored", "tester",
        "if self._executed.matches(names):",
        "if False:",
    ),
    Mutant(
        "verdicts are kept by name, whoever is asked", "tester",
        "found = tuple(self._ask(b, source, node, names) for b, source in self._sources)",
        "found = tuple(self._ask(b, self._sources[0][1], node, names) for b, _ in self._sources)",
    ),
    Mutant(
        "the mode of an op is ignored", "tester",
        'mode = mode_of(self.control_flow, op_of(node), backend) if op_of(node) else "auto"',
        'mode = "auto"',
        "control_flow",
    ),
    Mutant(
        "undersized blocks stay", "merge",
        "if not small and thorough:",
        "if True:",
    ),
    Mutant(
        "moves are not told", "merge",
        "moves += _demote(facts",
        "_demote(facts",
    ),
    Mutant(
        "small blocks skip their next backend", "merge",
        "return rest[0] if rest else EAGER",
        "return EAGER",
    ),
    Mutant(
        "any graph is exempt from the minimum", "merge",
        "if any(size and o == EAGER for size, o in zip(sizes, owner, strict=True)):",
        "if False:",
    ),
    Mutant(
        "a unit runs as early as its first input", "placement",
        "following[max([block_of[p] for p in preds[u]], default=0)][owner[u]]",
        "following[min([block_of[p] for p in preds[u]], default=0)][owner[u]]",
    ),
    Mutant(
        "units sink below what reads them", "placement",
        "                readers[v][there] = readers[v].get(there, 0) + 1\n"
        "        for p in preds[u]:\n            limit[p] = min(limit[p], block_of[u])",
        "                readers[v][there] = readers[v].get(there, 0) + 1",
    ),
    Mutant(
        "blocks of one owner are merged across others", "placement",
        "index += owner_of[b] != before",
        "index += b not in number and owner_of[b] not in [owner_of[o] for o in number]",
    ),
    Mutant(
        "groups forget all but one predecessor", "bounds",
        "before = _direct({group_of[p] for p in preds[u]}, group_preds)",
        "before = _direct({group_of[p] for p in preds[u][:1]}, group_preds)",
    ),
    Mutant(
        "the plan names its blocks' nodes in reverse", "assemble",
        "nodes=tuple(facts.nodes[i].name for i in w.members),",
        "nodes=tuple(facts.nodes[i].name for i in reversed(w.members)),",
    ),
    Mutant(
        "attributes list only their first block", "assemble",
        "blocks = tuple(sorted({block_of[facts.index[u]] for u in users}))",
        "blocks = tuple(sorted({block_of[facts.index[u]] for u in users[:1]}))",
    ),
    Mutant(
        "branches are never looked into", "line",
        "if backends[block_of[i]] != EAGER or not is_recursed(options.control_flow, node):",
        "if True:",
        "control_flow",
    ),
    Mutant(
        "opaque branches are split", "controlflow",
        'return plain and mode_of(control_flow, op) != "opaque"',
        "return plain",
        "control_flow",
    ),
)  # fmt: skip

WIRING = (
    Mutant(
        "a size is read from the first dimension", "wiring",
        "at_hand.setdefault(expression, (port, dim))",
        "at_hand.setdefault(expression, (port, 0))",
        "sizes dynamic views",
    ),
    Mutant(
        "a written attribute is held by each block", "wiring",
        "shared = set(facts.written_attributes)",
        "shared: set[str] = set()",
        "buffers mutation",
    ),
    Mutant(
        "inputs come in the order of a set", "wiring",
        "d.backend, tuple(d.members), tuple(d.inputs), d.sizes,",
        "d.backend, tuple(d.members), tuple(set(d.inputs)), d.sizes,",
    ),
    Mutant(
        "tuples cross whole", "ports",
        "if kind in (Kind.TUPLE, Kind.SIZES) and can_flatten(node):",
        "if False:",
        "multi_output tuple_outputs",
    ),
    Mutant(
        "None crosses as a value", "ports",
        "    if kind is Kind.NONE:\n        return None\n",
        "",
        "multi_output mutation",
    ),
)  # fmt: skip

SPLIT = (
    Mutant(
        "weights are copied", "blocks",
        "_copy_attr(source, copy, target)",
        '__import__("copy").deepcopy(source), _copy_attr(__import__("copy").deepcopy(source), '
        "copy, target)",
        "parameters buffers",
    ),
    Mutant(
        "keyword arguments are forgotten", "blocks",
        "kwargs = map_aggregate(kwargs, self.value)",
        "kwargs = {}",
    ),
    Mutant(
        "keyword arguments keep the input's nodes", "blocks",
        "kwargs = map_aggregate(kwargs, self.value)",
        "kwargs = dict(kwargs)",
    ),
    Mutant(
        "nodes of a block run in reverse", "blocks",
        "for node in members:\n            self.value(node)",
        "for node in reversed(members):\n            self.value(node)",
    ),
    Mutant(
        "get_attr comes before placeholders", "blocks",
        "        for port in self.wiring.inputs:\n            made",
        "        for i in self.wiring.members:\n            for used in self.facts.nodes[i]."
        'all_input_nodes:\n                if used.op == "get_attr":\n                    '
        "self.value(used)\n        for port in self.wiring.inputs:\n            made",
    ),
    Mutant(
        "truth values are baked in", "blocks",
        "        if leaf not in self.env:\n",
        '        if type(leaf.meta.get("val")) is bool:\n            return leaf.meta["val"]\n'
        "        if leaf not in self.env:\n",
        "scalars",
    ),
    Mutant(
        "sizes are baked in", "blocks",
        "        source, dim = self.wiring.sizes[node]\n",
        '        source, dim = self.wiring.sizes[node]\n        hint = node.meta["val"].node.hint\n'
        "        if hint is not None:\n            return hint\n",
        "sizes dynamic",
    ),
    Mutant(
        "a size comes from the last dimension", "blocks",
        "(self.ports[source], dim)",
        "(self.ports[source], -1)",
        "sizes dynamic",
    ),
    Mutant(
        "lists become tuples", "blocks",
        "return made if type(value) is list else tuple(made)",
        "return tuple(made)",
        "multi_output containers tuple_outputs",
    ),
    Mutant(
        "metadata of items is dropped", "blocks",
        'return {**{k: v for k, v in port.node.meta.items() if k in kept}, "val": port.value}',
        "return {}",
    ),
    Mutant(
        "blocks with effects look pure", "blocks",
        "effects = any(facts.effects[i].is_effect or facts.effects[i].proved for i in wiring."
        "members)",
        "effects = False",
    ),
    Mutant(
        "blocks are in training mode", "blocks",
        '"training": source.training, IMPURE',
        '"training": not source.training, IMPURE',
    ),
    Mutant(
        "branches are not put in", "blocks",
        "        if target in branches:\n",
        "        if False:\n",
        "control_flow",
    ),
    Mutant(
        "every branch is the first one", "blocks",
        "set_branch(module, source, target, branches[target])",
        "set_branch(module, source, target, next(iter(branches.values())))",
        "control_flow",
    ),
    Mutant(
        "a shared branch is split for each op", "line",
        "            if key not in done:\n",
        "            if True:\n",
        "control_flow",
    ),
    Mutant(
        "metadata is dropped", "fxgraph",
        "node.meta.update(meta)",
        "pass",
    ),
    Mutant(
        "metadata is shared with the input", "fxgraph",
        "node.meta.update(meta)",
        'node.meta = meta; meta["hierpart_block"] = name',
    ),
    Mutant(
        "names get a suffix", "fxgraph",
        "    if name in namespace._used_names:\n",
        '    if op == "call_function":\n        name += "_copy"\n'
        "    if name in namespace._used_names:\n",
    ),
    Mutant(
        "defaults of arguments are lost", "split",
        "graph, node.name, node.op, node.target, node.args, {}, node.type, node.meta",
        "graph, node.name, node.op, node.target, (), {}, node.type, node.meta",
        "scalars",
    ),
    Mutant(
        "unused inputs are dropped", "split",
        'inputs = [n for n in source.nodes if n.op == "placeholder"]',
        'inputs = [n for n in source.nodes if n.op == "placeholder" and n.users]',
    ),
    Mutant(
        "every output is the block's first", "split",
        "call_function\", operator.getitem, (call, i), meta=meta)",
        "call_function\", operator.getitem, (call, 0), meta=meta)",
    ),
    Mutant(
        "a Size leaves as a tuple", "split",
        "if kind not in (tuple, list):",
        "if False:",
        "sizes containers",
    ),
    Mutant(
        "the calling convention is lost", "split",
        "graph.set_codegen(copy.copy(source._codegen))",
        "pass",
        "pytree",
    ),
    Mutant(
        "the plan is hung on the input", "split",
        'parent.meta["hierpart"] = plan',
        'source.meta["hierpart"] = parent.meta["hierpart"] = plan',
    ),
    Mutant(
        "blocks are called in reverse", "split",
        "for block, wires in zip(plan.blocks, wiring, strict=True):\n        args",
        "for block, wires in reversed(list(zip(plan.blocks, wiring))):\n        args",
    ),
)  # fmt: skip

SPLITS = (*PLAN, *WIRING, *SPLIT)
"""The faults of this module."""
