#!/usr/bin/env python3
"""Loads a model that `skein export` wrote into plain PyTorch and prints the logits of an image.

    pip install torch safetensors          (and torchvision for mobilenet-v2)
    python3 load_export.py model.safetensors
    python3 load_export.py model.safetensors images.pt      a float tensor [B, C, H, W] with pixels from 0 to 1

Without images it takes a grey gradient. The file says in its metadata which model it is of and how images are normalised.
"""

import json
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    """Linear layers fc1, fc2, ... with ReLU between."""

    def __init__(self, n_inputs, hidden, n_classes):
        super().__init__()
        widths = [n_inputs, *hidden, n_classes]
        self.n_layers = len(widths) - 1
        for i in range(self.n_layers):
            self.add_module(f"fc{i + 1}", nn.Linear(widths[i], widths[i + 1]))

    def forward(self, x):
        x = x.flatten(1)
        for i in range(1, self.n_layers):
            x = F.relu(getattr(self, f"fc{i}")(x))
        return getattr(self, f"fc{self.n_layers}")(x)


class Cnn(nn.Module):
    """Two 3x3 convolutions with pooling, two linear layers."""

    def __init__(self, channels, height, width, n_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * (height // 4) * (width // 4), 384)
        self.fc2 = nn.Linear(384, n_classes)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def build(config, input_shape, n_classes):
    """The model that the description `config` names, with fresh weights."""
    channels, height, width = input_shape
    if config["kind"] == "mlp":
        return Mlp(math.prod(input_shape), config["hidden"], n_classes)
    if config["kind"] == "cnn":
        return Cnn(channels, height, width, n_classes)
    if config["kind"] == "mobilenet-v2":
        from torchvision.models import mobilenet_v2

        model = mobilenet_v2(num_classes=n_classes, width_mult=config["width"])
        if channels != 3:
            first = model.features[0][0]
            model.features[0][0] = nn.Conv2d(channels, first.out_channels, 3, stride=2, padding=1, bias=False)
        return model
    raise SystemExit(f"unknown model {config['kind']}")


def load(path):
    """The model in eval mode and its description (model, input_shape, n_classes, normalisation)."""
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["skein"])
    model = build(description["model"], description["input_shape"], description["n_classes"])
    model.load_state_dict(load_file(path))  # strict: every name and shape must fit
    return model.eval(), description


def main():
    model, description = load(sys.argv[1])
    channels, height, width = description["input_shape"]
    if len(sys.argv) > 2:
        images = torch.load(sys.argv[2])
    else:
        images = torch.linspace(0, 1, channels * height * width).reshape(1, channels, height, width)
    mean = torch.tensor(description["normalisation"]["mean"]).reshape(-1, 1, 1)
    std = torch.tensor(description["normalisation"]["std"]).reshape(-1, 1, 1)
    with torch.no_grad():
        logits = model((images - mean) / std)
    for row in logits:
        print(" ".join(f"{value:.6f}" for value in row.tolist()), "-> class", int(row.argmax()))


if __name__ == "__main__":
    main()
