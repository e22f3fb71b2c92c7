#!/usr/bin/env python3
"""Golden logits of the models in PyTorch and torchvision.

    python3 golden.py write                 writes golden.json beside this file (torch 2.13.0, torchvision 0.28.0)
    python3 golden.py logits FILE BATCH     loads an export into PyTorch, strictly, and prints the logits as JSON

Weights and images come from a formula of whole numbers that model/tests/numeric/golden.rs repeats, so nothing large
is stored.
"""

import json
import math
import pathlib
import sys

import numpy
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "examples"))
import load_export  # noqa: E402

def efficientnet(width):
    """Without stochastic depth, which would make the statistics of a training pass random."""
    return {"kind": "efficientnet-b1", "width": width, "stochastic_depth": 0.0}


GPT = {"layers": 3, "heads": 4, "width": 32, "context": 16, "vocabulary": 61, "dropout": 0.0}
CASES = [
    ({"kind": "mlp", "hidden": [20, 10]}, [1, 8, 8], 10),
    ({"kind": "cnn"}, [1, 28, 28], 10),
    ({"kind": "cnn"}, [3, 32, 32], 10),
    ({"kind": "mobilenet-v2", "width": 1.0}, [3, 32, 32], 10),
    ({"kind": "mobilenet-v2", "width": 1.0}, [3, 224, 224], 10),
    ({"kind": "mobilenet-v2", "width": 0.5}, [1, 28, 28], 7),
    ({"kind": "mobilenet-v2", "width": 1.4}, [3, 64, 64], 100),
    (efficientnet(1.0), [3, 32, 32], 10),
    (efficientnet(1.0), [3, 240, 240], 10),
    (efficientnet(0.5), [1, 28, 28], 7),
    ({"kind": "resnet-50", "width": 1.0, "stem": "imagenet"}, [3, 224, 224], 10),
    ({"kind": "resnet-50", "width": 0.25, "stem": "imagenet"}, [1, 28, 28], 7),
    ({"kind": "resnet-50", "width": 0.5, "stem": "cifar"}, [3, 32, 32], 10),
    ({"kind": "gpt", **GPT, "tied": False}, [1, 1, 16], 61),
    ({"kind": "gpt", **GPT, "tied": True}, [1, 1, 9], 61),
]
BATCH = 2
# Of two samples, batch norm over a single pixel makes 1 and -1 of whatever they are, rounding errors included.
TRAIN_BATCH = 8


def uniform(n, stream):
    """n numbers in [-1, 1) that look random; stream numbers the tensor."""
    x = (numpy.arange(n, dtype=numpy.uint64) * 2654435761 + stream * 40503 + 12345) % 2**32
    x ^= x >> 16
    x = x * 2246822519 % 2**32
    x ^= x >> 13
    return (x >> 8).astype(numpy.float64) / 2**23 - 1


def tensor(name, shape, stream):
    values = uniform(math.prod(shape), stream)
    if len(shape) > 1:
        values = values * math.sqrt(6 / math.prod(shape[1:]))
    elif name.endswith("running_var"):
        values = 1 + values / 2
    elif name.endswith("weight"):
        values = 1 + values / 4
    else:
        values = values / 8
    return torch.from_numpy(values.astype(numpy.float32)).reshape(shape)


def images(config, input_shape, batch):
    values = uniform(batch * math.prod(input_shape), 0)
    if config["kind"] == "gpt":
        values = numpy.floor((values + 1) / 2 * config["vocabulary"])
    return torch.from_numpy(values.astype(numpy.float32)).reshape(batch, *input_shape)


def fill(model):
    """Fills the state by formula; streams number the names in alphabetic order from 1."""
    state = model.state_dict()
    names = sorted(name for name in state if not name.endswith("num_batches_tracked"))
    for stream, name in enumerate(names, 1):
        state[name] = tensor(name, state[name].shape, stream)
    model.load_state_dict(state)
    return names


def write():
    import torchvision

    torch.manual_seed(0)
    cases = []
    for config, input_shape, n_classes in CASES:
        model = load_export.build(config, input_shape, n_classes)
        names = fill(model)
        with torch.no_grad():
            logits = model.eval()(images(config, input_shape, BATCH))
            model.train()(images(config, input_shape, TRAIN_BATCH))
        # The first values of some running statistics after one training pass.
        state = model.state_dict()
        statistics = {name: state[name][:2].tolist() for name in names if "running" in name}
        statistics = dict(list(statistics.items())[::9])  # an odd step: means and variances alternate
        cases.append({
            "model": config,
            "input_shape": input_shape,
            "n_classes": n_classes,
            "logits": logits.flatten().tolist(),
            "statistics": statistics,
        })
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    (HERE / "golden.json").write_text(json.dumps({"versions": versions, "cases": cases}) + "\n")


def logits(path, batch):
    model, description = load_export.load(path)
    x = images(description["model"], description["input_shape"], batch)
    with torch.no_grad():
        print(json.dumps(model(x).flatten().tolist()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["write"]:
        write()
    elif sys.argv[1:2] == ["logits"]:
        logits(sys.argv[2], int(sys.argv[3]))
    else:
        raise SystemExit(__doc__)
