"""Reports of any size made from nothing, for what has to stay legible and quick."""

from __future__ import annotations

import random

from hierpart.plan import Attempt, Block, Outcome, Plan, Reason, Verdict
from hierpart.report.details import Details, NodeDetail, Value
from hierpart.report.report import Report

OWNERS = ("tensorrt", "inductor", "eager")
OPS = tuple(f"torch.ops.aten.{name}.default" for name in ("relu", "convolution", "mul", "addmm"))


def large_report(blocks: int, nodes: int, seed: int = 0) -> Report:
    """Return a report of so many blocks and nodes; each block reads from up to three before it."""
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, nodes), blocks - 1))
    made: list[Block] = []
    owner: dict[str, str] = {}
    ops: dict[str, str] = {}
    verdicts: dict[str, tuple[Verdict, ...]] = {}
    details: dict[str, NodeDetail] = {}
    for i, (start, end) in enumerate(zip([0, *cuts], [*cuts, nodes], strict=True)):
        backend = rng.choice([o for o in OWNERS if not made or o != made[-1].backend])
        names = tuple(f"node_{n}" for n in range(start, end))
        for name in names:
            owner[name], ops[name] = backend, rng.choice(OPS)
            verdicts[name] = _verdicts(backend)
            source = f"/home/user/model/network.py:{rng.randrange(900)}"
            flops = rng.choice([None, 10**6])
            details[name] = NodeDetail(Value("2x64", "float32", 512), flops, source, f"layers.{i}")
        recent = [rng.choice(made[-8:]).outputs[0] for _ in range(3)] if made else ["x"]
        inputs = tuple(dict.fromkeys(recent))
        made.append(Block(i, backend, names, len(names), inputs, names[-1:], f"block_{i}"))
    plan = Plan(
        tuple(made), owner, ops, verdicts, priority=OWNERS, boundary_bytes=2**20,
        min_block_size={"tensorrt": 5, "inductor": 2}, lower_bound=max(1, blocks - 3),
    )  # fmt: skip
    values = {name: detail.value for name, detail in details.items()}
    outcomes = tuple(_outcome(block) for block in made)
    return Report(plan, outcomes, ("A note.",), {"plan": 1.5}, Details(details, values))


def _verdicts(owner: str) -> tuple[Verdict, ...]:
    rank = OWNERS.index(owner)
    return tuple(
        Verdict(name, i >= rank, None if i >= rank else Reason.NOT_LISTED)
        for i, name in enumerate(OWNERS[:-1])
    )


def _outcome(block: Block) -> Outcome:
    if block.index % 17 or block.backend == "eager":
        status = "eager" if block.backend == "eager" else "compiled"
        tries = (Attempt(block.backend, 0.5),) if status == "compiled" else ()
        return Outcome(block.index, block.backend, block.backend, 0.5, status, None, tries)
    error = "RuntimeError: no engine\nand a long log"
    tries = (Attempt(block.backend, 0.5, error),)
    return Outcome(block.index, block.backend, "eager", 0.5, "fell back", error, tries)
