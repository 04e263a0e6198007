"""C9: one graph gives one plan, from process to process, whatever the hash seed and the heap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.models import example, op_map

pytest.importorskip("torchvision")
pytest.importorskip("transformers")

CHILD = """
import random, sys
import torch
from transformers import LlamaModel  # registers what its outputs are made of

import hierpart
from tests.models import op_map, without_guards

seed = int(sys.argv[1])
order = random.Random(seed)
heap = [bytearray(order.randint(1, 4000)) for _ in range(500 + 97 * seed)]
order.shuffle(heap)
del heap[: len(heap) // 2]
for path in sys.argv[2:]:
    gm = without_guards(torch.export.load(path).module())
    support = op_map(gm, 0)
    keep = [object() for _ in range(1000 * seed)]
    for size in (1, 5):
        plan = hierpart.make_plan(
            gm,
            backend_priority=["tensorrt", "inductor"],
            backend_support_map={b: support.get(b, set()) for b in ("tensorrt", "inductor")},
            min_block_size=size,
        )
        print(plan.fingerprint())
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> list[str]:
    folder, paths = tmp_path_factory.mktemp("programs"), []
    for name in ("llama", "googlenet"):
        model, args = example(name)
        program = torch.export.export(model, args, strict=False).run_decompositions()
        paths.append(str(folder / f"{name}.pt2"))
        torch.export.save(program, paths[-1])
    return paths


def fingerprints(seed: int, programs: list[str]) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(seed), *programs], capture_output=True, text=True,
        env=environment, cwd=Path(__file__).parent.parent, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def check(processes: int, programs: list[str]) -> None:
    found = [tuple(fingerprints(seed, programs)) for seed in range(processes)]
    assert len(found[0]) == 4
    assert len(set(found[0])) == 4  # different graphs and sizes do give different plans
    assert len(set(found)) == 1


def test_three_processes_make_one_plan(programs):
    check(3, programs)


@pytest.mark.slow
def test_twenty_processes_make_one_plan(programs):
    check(20, programs)


def test_op_map_is_the_same_everywhere(programs):
    gm = torch.export.load(programs[0]).module()
    assert op_map(gm, 0) == op_map(gm, 0) != op_map(gm, 1)
