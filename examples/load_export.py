#!/usr/bin/env python3
"""Loads a model that `skein export` wrote into plain PyTorch and prints the logits of an image.

    pip install torch safetensors          (and torchvision for mobilenet-v2, efficientnet-b1, resnet-50)
    python3 load_export.py model.safetensors
    python3 load_export.py model.safetensors images.pt      a float tensor [B, C, H, W] with pixels from 0 to 1,
                                                            of a gpt [B, 1, 1, T] with the tokens' numbers

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


class Linear(nn.Module):
    """GPT-2's Conv1D: a linear layer whose weight stands the other way."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Layer(nn.Module):
    """Causal attention and two linear layers, each on normalised input and added to it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": Linear(width, 3 * width), "c_proj": Linear(width, width)})
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": Linear(width, 4 * width), "c_proj": Linear(4 * width, width)})

    def attend(self, x):
        batch, length, width = x.shape
        parts = self.attn["c_attn"](x).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(later, -math.inf).softmax(3) @ v
        return self.attn["c_proj"](mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2 with Hugging Face's names; takes tokens [B, 1, 1, T] as floats and gives logits [B, T, V]."""

    def __init__(self, config):
        super().__init__()
        width, vocabulary = config["width"], config["vocabulary"]
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width),
            "wpe": nn.Embedding(config["context"], width),
            "h": nn.ModuleList(Layer(width, config["heads"]) for _ in range(config["layers"])),
            "ln_f": nn.LayerNorm(width),
        })
        if not config["tied"]:
            self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        tokens = x.flatten(1).long()
        parts = self.transformer
        x = parts["wte"](tokens) + parts["wpe"].weight[: tokens.shape[1]]
        for layer in parts["h"]:
            x = layer(x)
        head = self.lm_head.weight if hasattr(self, "lm_head") else parts["wte"].weight
        return F.linear(parts["ln_f"](x), head)


def with_channels(conv, channels):
    """A first convolution for so many channels: torchvision's models take three."""
    if channels == conv.in_channels:
        return conv
    return nn.Conv2d(channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, bias=False)


def efficientnet_b1(config, channels, n_classes):
    """torchvision's efficientnet_b1; of another width the class behind it with the settings behind it."""
    from torchvision.models import efficientnet

    drop = {"stochastic_depth_prob": config["stochastic_depth"], "num_classes": n_classes}
    if config["width"] == 1:
        model = efficientnet.efficientnet_b1(**drop)
    else:
        stages, last = efficientnet._efficientnet_conf("efficientnet_b1", width_mult=config["width"], depth_mult=1.1)
        model = efficientnet.EfficientNet(stages, 0.2, last_channel=last, **drop)
    model.features[0][0] = with_channels(model.features[0][0], channels)
    return model


def resnet_50(config, channels, n_classes):
    """torchvision's resnet50, with another stem and other widths where the settings have them."""
    from torchvision.models import resnet
    from torchvision.models._utils import _make_divisible

    def scaled(planes):
        return _make_divisible(planes * config["width"], 8)

    class Scaled(resnet.ResNet):
        def _make_layer(self, block, planes, *rest, **settings):
            if planes == 64:
                self.inplanes = scaled(64)
            return super()._make_layer(block, scaled(planes), *rest, **settings)

    if config["width"] == 1:
        model = resnet.resnet50(num_classes=n_classes)
    else:
        model = Scaled(resnet.Bottleneck, [3, 4, 6, 3])
        model.conv1 = nn.Conv2d(3, scaled(64), 7, stride=2, padding=3, bias=False)
        model.bn1 = nn.BatchNorm2d(scaled(64))
        model.fc = nn.Linear(4 * scaled(512), n_classes)
    if config["stem"] == "cifar":
        model.conv1 = nn.Conv2d(3, scaled(64), 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    model.conv1 = with_channels(model.conv1, channels)
    return model


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
        model.features[0][0] = with_channels(model.features[0][0], channels)
        return model
    if config["kind"] == "efficientnet-b1":
        return efficientnet_b1(config, channels, n_classes)
    if config["kind"] == "resnet-50":
        return resnet_50(config, channels, n_classes)
    if config["kind"] == "gpt":
        return Gpt(config)
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
    for row in logits.flatten(0, -2):
        print(" ".join(f"{value:.6f}" for value in row.tolist()), "-> class", int(row.argmax()))


if __name__ == "__main__":
    main()
