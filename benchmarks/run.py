"""Run the benchmarks: ``python -m benchmarks.run [--quick | --full]``.

Writes one JSON file, one Markdown file and one picture a benchmark into ``benchmarks/results/``.
``--quick`` takes some minutes; ``--full`` goes up to 100,000 nodes and takes most of an hour.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import platform
import warnings
from typing import Any

import torch

import hierpart
from benchmarks import blocks, end_to_end, overhead, partition_time, peers, plots, sharing
from benchmarks.graphs import MUTATIONS, SIZES

RESULTS = pathlib.Path(__file__).parent / "results"
NAMES = ("partition_time", "blocks", "end_to_end", "overhead", "sharing")


def _rounds(size: int) -> int:
    return 5 if size <= 5_000 else 3


def _measure(name: str, full: bool) -> tuple[dict[str, Any], str]:
    if name == "partition_time":
        data = partition_time.measure(SIZES if full else SIZES[:2], _rounds)
        return data, partition_time.markdown(data)
    if name == "end_to_end":
        data = end_to_end.measure()
        return data, end_to_end.markdown(data)
    if name == "overhead":
        data = overhead.measure(30)
        return data, overhead.markdown(data)
    if name == "sharing":
        data = sharing.measure(24 if full else 6)
        return data, sharing.markdown(data)
    data = blocks.measure(MUTATIONS if full else 60)
    return data, blocks.markdown(data)


def _about(full: bool) -> dict[str, Any]:
    return {
        "command": f"python -m benchmarks.run {'--full' if full else '--quick'}",
        "hierpart": hierpart.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "torch_tensorrt": "not importable: " + why if (why := peers.missing()) else _tensorrt(),
    }


def _tensorrt() -> str:
    import torch_tensorrt

    return str(torch_tensorrt.__version__)


def main() -> None:
    """Parse the arguments, run, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes only (the default)")
    parser.add_argument("--full", action="store_true", help="every size, every mutation case")
    parser.add_argument("--only", choices=NAMES, help="one benchmark")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    about = _about(options.full)
    RESULTS.mkdir(exist_ok=True)
    for name in [options.only] if options.only else NAMES:
        data, text = _measure(name, options.full)
        content = json.dumps({"about": about, **data}, indent=1) + "\n"
        (RESULTS / f"{name}.json").write_text(content)
        facts = "".join(f"- {key}: {value}\n" for key, value in about.items())
        (RESULTS / f"{name}.md").write_text(f"# {name}\n\n{facts}\n{text}")
        print(text)
        if name not in plots.PLOTS:
            continue
        if importlib.util.find_spec("matplotlib"):
            plots.draw(name)
        else:
            print("no picture: pip install -e '.[plots]'")


if __name__ == "__main__":
    main()
