#!/usr/bin/env python3
"""What Skein's machinery costs one peer: the same training in a plain libtorch loop and in `skein up`, in turn.

    ./run bench            # builds and runs this after the criterion benchmarks
    examples/overhead.py [--steps 400] [--rounds 5] [--source fashion-mnist]

Both train `cnn` with batch 32 on one thread. Printed per round: milliseconds per step and resident memory; at the end
the medians and the ratio. Steps are timed by the journal's own stamps, without start-up, from the 20th step on.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASE = ROOT / "target" / "release"
WARM_UP = 20
PARAMETER_BYTES = {"fashion-mnist": 4 * 1_227_274, "digits": 4 * 1_227_274}

JOB = """
name = "overhead"
seed = 1
[model]
kind = "cnn"
[data]
source = "{source}"
[train]
batch = 32
optimiser = {{ kind = "sgd", lr = 0.01, momentum = 0.9 }}
[stop]
steps = {steps}
[evaluate]
every = 1000000
[checkpoint]
steps = 1000000
"""


def plain(source, steps):
    out = subprocess.run([RELEASE / "examples" / "plain_loop", source, str(steps)], check=True, capture_output=True)
    found = json.loads(out.stdout)
    steps = found["steps"]
    return 1e3 * found["seconds"] / steps, 1e3 * found["cpu_seconds"] / steps, found["resident_kb"]


def skein(source, steps):
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder) / "home"
        job = pathlib.Path(folder) / "job.toml"
        job.write_text(JOB.format(source=source, steps=WARM_UP + steps))
        command = [RELEASE / "skein", "--home", home]
        node = subprocess.Popen(
            command + ["up", "--listen", "127.0.0.1:0", "--no-mdns", "--threads", "1"], stdout=subprocess.PIPE
        )
        try:
            node.stdout.readline()
            subprocess.run(command + ["train", "--detach", job], check=True, stdout=subprocess.DEVNULL)
            resident, stamps, spent = 0, {}, []
            deadline = time.monotonic() + 600
            while WARM_UP + steps not in stamps:
                if time.monotonic() > deadline:
                    raise SystemExit("the job did not end in ten minutes")
                time.sleep(0.2)
                if stamps and max(stamps) >= WARM_UP:
                    resident = max(resident, resident_kb(node.pid))
                    spent.append((max(stamps), cpu_seconds(node.pid)))
                for journal in home.glob("jobs/*/metrics.jsonl"):
                    for line in journal.read_text().splitlines():
                        entry = json.loads(line) if line.endswith("}") else {}
                        if entry.get("event") == "step":
                            stamps[entry["step"]] = entry["t_ms"]
            (first, before), (last, after) = spent[0], spent[-1]
            cpu = 1e3 * (after - before) / max(last - first, 1)
            return (stamps[WARM_UP + steps] - stamps[WARM_UP]) / steps, cpu, resident
        finally:
            node.terminate()
            node.wait(timeout=10)


def resident_kb(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=400)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--source", default="fashion-mnist", choices=sorted(PARAMETER_BYTES))
    options = arguments.parse_args()
    rows = []
    print("         wall ms/step           processor ms/step      resident MB")
    print("round    plain   skein  ratio   plain   skein  ratio   plain  skein")
    for number in range(options.rounds):
        a, b = plain(options.source, options.steps), skein(options.source, options.steps)
        rows.append((a[0], b[0], b[0] / a[0], a[1], b[1], b[1] / a[1], a[2] / 1024, b[2] / 1024))
        print("{:5}   {:6.2f}  {:6.2f}  {:5.3f}  {:6.2f}  {:6.2f}  {:5.3f}  {:6.1f} {:6.1f}".format(number + 1, *rows[-1]))
    middle = [statistics.median(column) for column in zip(*rows)]
    print("median  {:6.2f}  {:6.2f}  {:5.3f}  {:6.2f}  {:6.2f}  {:5.3f}  {:6.1f} {:6.1f}".format(*middle))
    allowed = 3 * PARAMETER_BYTES[options.source] / 2**20 + 60
    print(f"overhead {100 * (middle[2] - 1):+.1f} % of wall time, {100 * (middle[5] - 1):+.1f} % of processor time (aim: at most 5 %)")
    print(f"memory over the plain loop {middle[7] - middle[6]:.1f} MB (aim: at most {allowed:.1f} MB)")


if __name__ == "__main__":
    main()
