"""Print the share of lines and of branches that the tests ran, and fail if either is too low.

python .ci/coverage.py coverage.json
"""

import json
import pathlib
import sys

LEAST = {"lines": 95.0, "branches": 90.0}


def main(path: str) -> int:
    """Return 1 if a share is below what is wanted."""
    totals = json.loads(pathlib.Path(path).read_text())["totals"]
    shares = {
        "lines": 100 * totals["covered_lines"] / totals["num_statements"],
        "branches": 100 * totals["covered_branches"] / totals["num_branches"],
    }
    for name, share in shares.items():
        print(f"coverage of {name}: {share:.1f} % (at least {LEAST[name]:.0f} %)")
    return int(any(shares[name] < least for name, least in LEAST.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
