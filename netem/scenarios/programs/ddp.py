#!/usr/bin/env python3
"""PyTorch DistributedDataParallel over gloo on Fashion-MNIST, as a worker of a testbed scenario.

Rank, world size, addresses and the file for metrics come from the environment that the testbed sets. The model is that of
skein's `cnn`: two 3x3 convolutions with 32 and 64 channels and 2x2 pooling, then linear layers of 384 and 10. Lines of
metrics have the form of docs/journal.md, so that the same reports and `compare` work.

Within a step DDP hides the exchange in the backward pass. What the backward pass takes beyond what it took alone, before
the others were there, counts as communicating; it holds the waiting for slower workers too.
"""

import argparse
import gzip
import hashlib
import json
import os
import statistics
import struct
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

FOLDER = os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist")
RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])


def idx(name):
    """An IDX file, gzipped or not."""
    path = os.path.join(FOLDER, name)
    if os.path.exists(path + ".gz"):
        with gzip.open(path + ".gz") as file:
            raw = file.read()
    else:
        with open(path, "rb") as file:
            raw = file.read()
    dimensions = raw[3]
    shape = struct.unpack(f">{dimensions}I", raw[4 : 4 + 4 * dimensions])
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def images(name):
    return torch.from_numpy(idx(f"{name}-images-idx3-ubyte").copy()).unsqueeze(1)


def labels(name):
    return torch.from_numpy(idx(f"{name}-labels-idx1-ubyte").astype(np.int64))


def normalised(pixels):
    return pixels.float().div(255).sub(0.2860).div(0.3530)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 7 * 7, 384)
        self.fc2 = nn.Linear(384, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Metrics:
    """JSON lines as a skein peer writes them."""

    def __init__(self):
        self.file = open(os.environ["METRICS"], "a", buffering=1)

    def write(self, event, **fields):
        line = {"t_ms": int(time.time() * 1000), "event": event, **fields}
        self.file.write(json.dumps(line) + "\n")


def batches(count, batch, seed):
    """Rows of this rank: every epoch a new order of all data, of which each rank takes its part."""
    epoch = 0
    while True:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
        own = order[RANK::WORLD]
        for start in range(0, len(own) - batch + 1, batch):
            yield own[start : start + batch]
        epoch += 1


@torch.no_grad()
def judged(model, x, y):
    """Accuracy and mean loss."""
    right, loss = 0, 0.0
    for start in range(0, len(x), 250):
        scores = model(normalised(x[start : start + 250]))
        right += (scores.argmax(1) == y[start : start + 250]).sum().item()
        loss += F.cross_entropy(scores, y[start : start + 250], reduction="sum").item()
    return right / len(x), loss / len(x)


def alone(model, x, y, batch):
    """How much longer than the forward pass the backward pass takes by itself."""
    ratios = []
    for start in range(0, 8 * batch, batch):
        begun = time.monotonic()
        loss = F.cross_entropy(model(normalised(x[start : start + batch])), y[start : start + batch])
        forward = time.monotonic()
        loss.backward()
        ratios.append((time.monotonic() - forward) / (forward - begun))
        model.zero_grad()
    return statistics.median(ratios)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=float, required=True, help="validation accuracy that ends it")
    parser.add_argument("--seconds", type=float, default=900, help="ends it at the latest")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=50, help="steps between two looks")
    parser.add_argument("--rows", type=int, default=1000, help="validation rows per look")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "1")))
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    metrics = Metrics()
    x, y = images("train"), labels("train")
    val_x, val_y = images("t10k"), labels("t10k")
    model = Cnn()
    ratio = alone(model, x, y, args.batch)

    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)
    mesh = nn.parallel.DistributedDataParallel(model)
    optimiser = torch.optim.SGD(mesh.parameters(), lr=args.lr)
    rows = batches(len(x), args.batch, args.seed)
    begun, step, over = time.monotonic(), 0, torch.zeros(1)
    while not over.item():
        own = next(rows)
        start = time.monotonic()
        loss = F.cross_entropy(mesh(normalised(x[own])), y[own])
        forward = time.monotonic()
        loss.backward()
        backward = time.monotonic()
        optimiser.step()
        optimiser.zero_grad()
        end = time.monotonic()
        step += 1
        exchanging = max(0.0, (backward - forward) - ratio * (forward - start))
        metrics.write(
            "step",
            step=step,
            train_loss=loss.item(),
            samples=args.batch,
            computing_s=(end - start) - exchanging,
            waiting_s=0.0,
            communicating_s=exchanging,
        )
        if step % args.every == 0:
            if RANK == 0:
                accuracy, val_loss = judged(model, val_x[: args.rows], val_y[: args.rows])
                metrics.write(
                    "evaluated",
                    step=step,
                    val_accuracy=accuracy,
                    val_loss=val_loss,
                    samples=args.rows,
                    samples_mesh=step * args.batch * WORLD,
                )
                late = time.monotonic() - begun > args.seconds
                over.fill_(accuracy >= args.target or late)
            dist.broadcast(over, 0)
    weights = hashlib.sha256()
    for parameter in model.parameters():
        weights.update(parameter.detach().numpy().tobytes())
    accuracy = judged(model, val_x, val_y)[0] if RANK == 0 else None
    metrics.write("closed", reason="the target or the time", digest=weights.hexdigest(), val_accuracy=accuracy)
    # The others must not go before rank 0 is done: gloo would tell it of a broken connection.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
