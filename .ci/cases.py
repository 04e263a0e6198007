"""Run the field cases with what all of them import loaded once, and timing cases tried again.

    cases.py RUNNER [options of RUNNER]

The runner forks a process for each case, in which the first export or split would load Dynamo,
sympy and the decompositions again (3 s of CPU a case). A case about time says "advisory" when it
misses: a neighbour on the same core makes a second of any program twice as slow, so such cases,
and no others, get four more tries.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

TRIES = 5

# Runs in the process that the cases are forked from.
WARM = """
import runpy, sys
import torch, hierpart
linear, batch = torch.nn.Linear(2, 2), {0: torch.export.Dim("batch", min=2, max=9)}
program = torch.export.export(linear, (torch.randn(3, 2),), dynamic_shapes=(batch,))
hierpart.hierarchical_adjacency_partition(program.run_decompositions().module())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def verdicts(arguments: list[str]) -> dict[str, str]:
    """Run cases and return each one's verdict."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", WARM, *arguments, "--out", folder]
        subprocess.run(command, check=False)
        (results,) = pathlib.Path(folder).glob("cases_*.json")
        return {r["case"]: r["verdict"] for r in json.loads(results.read_text())}


def main() -> int:
    """Return 0 when every case passed."""
    arguments = sys.argv[1:]
    found = verdicts(arguments)
    for _ in range(TRIES - 1):
        again = [case for case, verdict in found.items() if verdict == "advisory"]
        if not again:
            break
        found |= verdicts([*arguments, *again])
    return 0 if found and set(found.values()) == {"pass"} else 1


if __name__ == "__main__":
    sys.exit(main())
