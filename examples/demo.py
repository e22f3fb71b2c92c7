#!/usr/bin/env python3
"""The main job, shown on one machine: `./run demo` builds skein and runs this.

Starts four peers as separate processes with unequal CPU, trains one job, kills the peer that submitted it with SIGKILL a
third of the way, starts a fifth at half way, and checks that all survivors end with the same model and that the model is
good enough. Everything goes through the real command line with --json; its formats are in docs/json.md.

In: a built skein, a job file. Out: a table on standard output, the model and each peer's files below `--folder`.
Exit code 0 only if all of it held; 1 otherwise; 130 after Ctrl-C. All processes are ended in each case.
"""

import argparse
import contextlib
import ctypes
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

ROOT = Path(__file__).resolve().parent.parent
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True)
class Task:
    """What is trained, and where its middle is."""

    job: Path
    # Accuracy on the whole validation set that the model must have.
    accuracy: float
    # Samples of all peers together, fewer than any run has needed to get there: a job that ends by accuracy has no known
    # length, so "a third of the way" and "half way" are counted by this, and the fifth peer has time to start.
    samples: int


DIGITS = Task(ROOT / "examples/jobs/demo-digits.toml", 0.97, 15_000)
CLOTHES = Task(ROOT / "examples/jobs/demo-fashion-mnist.toml", 0.88, 30_000)


@dataclass(frozen=True)
class Device:
    """The CPU that a peer gets: threads for training, and how far it steps back for others (nice, 0 to 19)."""

    threads: int
    nice: int


# Four unequal ones, and the one that joins. The first submits the job.
DEVICES = [Device(2, 0), Device(1, 0), Device(1, 2), Device(1, 5), Device(1, 0)]

# Beyond this something is wrong, also on a slow and busy machine.
START_DEADLINE_S = 60
JOB_DEADLINE_S = 900
# `skein up` says goodbye within 2 s.
END_DEADLINE_S = 5


class DemoError(Exception):
    """What did not hold."""


class Ended(Exception):
    """A signal asks to end."""


@dataclass
class Peer:
    """One `skein up`."""

    number: int
    device: Device
    skein: Path
    home: Path
    process: Optional[subprocess.Popen] = None
    id: str = ""
    killed: bool = False

    @property
    def name(self) -> str:
        return f"peer {self.number}"

    def up(self, *more: str) -> None:
        """Starts it. It listens on loopback alone, so no firewall and no other mesh comes in between."""
        threads = min(self.device.threads, os.cpu_count() or 1)
        words = ["up", "--listen", "127.0.0.1:0", "--no-mdns", "--threads", str(threads), *more]
        self.home.mkdir(parents=True)
        with open(self.home / "output.txt", "wb") as output:
            self.process = subprocess.Popen(
                [str(self.skein), *words, "--home", str(self.home)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Five peers share the cores here: threads that wait for each other must not burn what the others need.
                env={**os.environ, "OMP_WAIT_POLICY": "passive"},
                preexec_fn=lambda: become(self.device.nice),
            )
        deadline = time.monotonic() + START_DEADLINE_S
        while not self.id:
            if self.process.poll() is not None:
                raise DemoError(f"{self.name} ended at once:\n{self.said()}")
            if time.monotonic() > deadline:
                raise DemoError(f"{self.name} does not answer after {START_DEADLINE_S} s:\n{self.said()}")
            time.sleep(0.1)
            with contextlib.suppress(DemoError):
                self.id = self.ask("status")["peer"]

    def ask(self, *words: str) -> dict:
        """Runs a command on this peer and returns its answer."""
        return ask(self.skein, *words, "--home", str(self.home))

    def said(self) -> str:
        """What it printed."""
        return (self.home / "output.txt").read_text(errors="replace").strip()

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self.process.wait()
        self.killed = True

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None


def become(nice: int) -> None:
    """In the new process: lower priority, and the end of this script, however it comes, is its end too."""
    # A group of its own: Ctrl-C comes to this script alone, which ends the peers in its order. Not a session of its own:
    # Linux shares the CPU by session first, and `nice` would count for nothing.
    os.setpgid(0, 0)
    os.nice(nice)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def ask(skein: Path, *words: str) -> dict:
    """Runs a command and returns its answer."""
    done = subprocess.run([str(skein), *words, "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise DemoError(f"skein {words[0]} says: {done.stdout}{done.stderr}".strip()) from None
    if done.returncode != 0:
        raise DemoError(f"skein {words[0]} ends with {done.returncode}: {answer.get('message', answer)}")
    return answer


@dataclass
class Watch:
    """`skein watch` on one peer: the job's standing, twice a second."""

    process: subprocess.Popen
    lines: queue.Queue = field(default_factory=queue.Queue)

    @classmethod
    def on(cls, peer: Peer, job: str) -> "Watch":
        process = subprocess.Popen(
            [str(peer.skein), "watch", job, "--json", "--home", str(peer.home)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: become(0),
        )
        watch = cls(process)
        threading.Thread(target=watch.read, daemon=True).start()
        return watch

    def read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def next(self) -> dict:
        """The next standing."""
        try:
            line = self.lines.get(timeout=START_DEADLINE_S)
        except queue.Empty:
            raise DemoError(f"skein watch is silent for {START_DEADLINE_S} s") from None
        if line is None or line["kind"] != "progress":
            raise DemoError(f"skein watch ended: {(line or {}).get('message', 'the peer is gone')}")
        return line

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Demo:
    """The five peers and what happens to them."""

    def __init__(self, skein: Path, folder: Path, task: Task):
        self.skein, self.folder, self.task = skein, folder, task
        self.peers = [Peer(n + 1, device, skein, folder / f"peer-{n + 1}") for n, device in enumerate(DEVICES)]
        self.watch: Optional[Watch] = None
        self.job = ""
        self.began = time.monotonic()
        self.on_line = False

    def say(self, text: str) -> None:
        """A line that stays."""
        print(("\n" if self.on_line else "") + f"[{time.monotonic() - self.began:5.1f} s] {text}", flush=True)
        self.on_line = False

    def show(self, standing: dict) -> None:
        """Progress: one line that is written again on a terminal, a line every ten seconds elsewhere."""
        accuracy = standing["val_accuracy"]
        text = (
            f"{standing['phase']}: {standing['samples_mesh']} samples, {len(standing['peers'])} peers, "
            f"accuracy {'-' if accuracy is None else f'{100 * accuracy:.1f} %'}, "
            f"{standing['samples_per_s_mesh'] or 0:.0f} samples/s"
        )
        if sys.stdout.isatty():
            print(f"\r[{time.monotonic() - self.began:5.1f} s] {text}\033[K", end="", flush=True)
            self.on_line = True
        elif time.monotonic() - self.shown > 10:
            self.shown = time.monotonic()
            self.say(text)

    def run(self) -> None:
        """All of it."""
        self.start_mesh()
        self.submit()
        self.train()
        standings = self.compare()
        self.table(standings)
        self.export(standings)

    def start_mesh(self) -> None:
        first, *others = self.peers[:4]
        first.up()
        token = token_of(first)
        for peer in others:
            peer.up("--join", token)
        for peer in self.peers[:4]:
            self.say(f"{peer.name} is {peer.id[:8]}: process {peer.process.pid}, {describe(peer.device)}")

    def submit(self) -> None:
        answer = self.peers[0].ask("train", str(self.task.job), "--detach")
        self.job = answer["job"]
        self.say(f"peer 1 submitted job {answer['name']} ({self.job[:8]}); its end: accuracy {100 * self.task.accuracy:g} %")
        # The job reaches the others by itself.
        self.wait(lambda: any(job["id"] == self.job for job in self.peers[1].ask("jobs")["jobs"]), "peer 2 to hear of the job")
        self.watch = Watch.on(self.peers[1], self.job)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                raise DemoError(f"waited {START_DEADLINE_S} s for {what}")
            time.sleep(0.1)

    def train(self) -> None:
        """Follows the job to its end, with one death and one birth on the way."""
        first, fifth = self.peers[0], self.peers[4]
        deadline = time.monotonic() + JOB_DEADLINE_S
        self.shown = time.monotonic()
        while True:
            standing = self.watch.next()
            self.show(standing)
            way = standing["samples_mesh"] / self.task.samples
            if standing["phase"] in ("done", "stopped", "failed"):
                break
            if not first.killed and way >= 1 / 3:
                first.kill()
                self.say(f"{way:.0%} of the way: killed peer 1, which submitted the job (SIGKILL)")
            elif first.killed and fifth.process is None and way >= 1 / 2:
                # Any peer's line will do; the first one's names an address where nobody listens now.
                fifth.up("--join", token_of(self.peers[1]))
                self.say(f"{way:.0%} of the way: started peer 5, {fifth.id[:8]}: process {fifth.process.pid}, {describe(fifth.device)}")
            for peer in self.peers:
                if peer.process is not None and not peer.killed and not peer.is_running():
                    raise DemoError(f"{peer.name} ended by itself with {peer.process.returncode}:\n{peer.said()}")
            if time.monotonic() > deadline:
                raise DemoError(f"the job has not ended after {JOB_DEADLINE_S} s")
        self.say(f"job {standing['phase']}: {standing['reason']}, after {standing['samples_mesh']} samples")
        if standing["phase"] != "done":
            raise DemoError(f"the job is {standing['phase']}, not done")
        if not first.killed or fifth.process is None:
            raise DemoError("the job ended before one peer was killed and another had joined")

    def compare(self) -> list:
        """The job as each survivor sees it, once all have closed it. All must hold one model."""
        standings = []
        for peer in self.peers[1:]:

            def closed(peer: Peer = peer) -> bool:
                done = [job for job in peer.ask("jobs")["jobs"] if job["id"] == self.job and job["phase"] == "done"]
                standings.extend(done)
                return bool(done)

            self.wait(closed, f"{peer.name} to close the job")
        hashes = {peer.number: standing["model_hash"] for peer, standing in zip(self.peers[1:], standings)}
        if len(set(hashes.values())) != 1 or None in hashes.values():
            raise DemoError(f"the survivors hold different models: {hashes}")
        self.say(f"peers 2 to 5 hold the same model: {standings[0]['model_hash']}")
        return standings

    def table(self, standings: list) -> None:
        """What each peer contributed, by the survivors' agreed account."""
        contributions = {entry["peer"]: entry for entry in standings[0]["contributions"]}
        rows = [["PEER", "ID", "THREADS", "NICE", "SAMPLES", "STEPS", "SENT", "COMPRESSION", "WAITED", ""]]
        for peer in self.peers:
            entry = contributions.get(peer.id)
            if entry is None or entry["samples"] == 0:
                raise DemoError(f"{peer.name} contributed nothing")
            compression = entry["compression"]
            rows.append(
                [
                    str(peer.number),
                    peer.id[:8],
                    str(peer.device.threads),
                    str(peer.device.nice),
                    str(entry["samples"]),
                    str(entry["steps"]),
                    f"{entry['bytes_out'] / 1e6:.1f} MB",
                    "-" if compression is None else f"{compression:.0f} x",
                    f"{entry['seconds_waiting']:.1f} s",
                    "killed" if peer.killed else "joined half way" if peer.number == 5 else "",
                ]
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        print()
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        print(flush=True)

    def export(self, standings: list) -> None:
        """Takes the model out and judges the file, which needs no peer."""
        path = self.folder / "model.safetensors"
        self.peers[4].ask("export", self.job, "--output", str(path))
        judged = ask(self.skein, "eval", str(path), "--data", str(self.task.job))
        if judged["model_hash"] != standings[0]["model_hash"]:
            raise DemoError(f"{path} holds another model: {judged['model_hash']}")
        self.say(f"exported by peer 5 and judged by skein eval: accuracy {100 * judged['accuracy']:.2f} % on {judged['samples']} images")
        if judged["accuracy"] < self.task.accuracy:
            raise DemoError(f"accuracy is {judged['accuracy']}, below {self.task.accuracy}")
        self.say(f"the model: {path}")

    def end(self) -> None:
        """Ends every process that was started: politely, then not."""
        if self.watch is not None:
            self.watch.end()
        running = [peer.process for peer in self.peers if peer.is_running()]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + END_DEADLINE_S
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()


def token_of(peer: Peer) -> str:
    """What to type on another device: the end of the line `skein up --join TOKEN`."""
    return peer.ask("status")["join_line"].split()[-1]


def describe(device: Device) -> str:
    """The device in words."""
    return f"threads {device.threads}, nice {device.nice}"


def end_by_signal(number: int, _frame: object) -> None:
    """Turns a signal into an exception, once: what is being ended is then ended in peace."""
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Ended(number)


def main() -> int:
    parser = argparse.ArgumentParser(description="train one model with five peers on this machine, and kill one of them")
    parser.add_argument("--skein", type=Path, required=True, help="the built binary")
    parser.add_argument("--folder", type=Path, default=ROOT / "demo", help="where the peers keep their files; replaced (default: demo/)")
    parser.add_argument("--digits", action="store_true", help="train on the digits even where Fashion-MNIST is installed")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_by_signal)
    task = DIGITS if arguments.digits or not FASHION_MNIST.is_dir() else CLOTHES
    folder = arguments.folder.resolve()
    demo = None
    try:
        if folder.exists():
            if not (folder / "peer-1").is_dir() and any(folder.iterdir()):
                raise DemoError(f"{folder} is not of an earlier demo: give another --folder")
            shutil.rmtree(folder)
        demo = Demo(arguments.skein.resolve(), folder, task)
        demo.run()
    except Ended as ended:
        print(f"\ndemo: ended by signal {ended}", file=sys.stderr)
        return 128 + int(str(ended))
    except (DemoError, OSError) as error:
        print(f"\ndemo: FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        if demo is not None:
            demo.end()
    demo.say("all of it held; all processes have ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
