"""Prints the cells of asteroid-envs as a table: python3 cells.py SUMMARY.json, where `skein-netem run ... --json SUMMARY.json` wrote it.

Samples per second of each plan; then ours against dense data parallelism and against the best of the others.
"""

import json
import sys
from collections import defaultdict

CUTS = ["measured", "data-parallel", "equal", "gpipe", "pipedream", "dapple", "hetpipe"]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        runs = json.load(file)["runs"]
    cells = defaultdict(dict)
    for run in runs:
        name, *settings = run["variant"].split(",")
        settings = dict(setting.split("=", 1) for setting in settings)
        environment, model = name.split("-", 1)
        cell = (model, environment.upper(), settings["node.all.link"])
        cells[cell][settings["job.strategy.pipeline.cut"]] = run["metrics"].get("samples_per_s")
    print("| model | | lines | " + " | ".join(CUTS) + " | / data-parallel | / best other |")
    print("|" + " --- |" * (len(CUTS) + 5))
    for cell, rates in sorted(cells.items()):
        own, *others = (rates.get(cut) for cut in CUTS)
        shown = [f"{rate:.4g}" if rate else "-" for rate in [own, *others]]
        against = [others[0], max((rate for rate in others if rate), default=None)]
        ratios = [f"{own / rate:.2f}" if own and rate else "-" for rate in against]
        print("| " + " | ".join([*cell, *shown, *ratios]) + " |")


if __name__ == "__main__":
    main()
