"""torch.topk over the variables of benches/coding.rs, for comparison with its "pack top 1 %" and "pack top 10 %" rows.

torch.topk only finds the entries: no coding, no residual. One thread. Throughput in bytes of the dense f32 arena.
Needs PyTorch (measured with 2.13.0): python3 gossip/benches/topk.py
"""

import time

import torch


def lengths(n_values):
    small = [9 * 32, 32, 9 * 32 * 64, 64, 128, 1280, 10]
    return small + [n_values - sum(small)]


def seconds(run, repeats=30):
    """The best of several: what others do on the machine only ever adds."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print(f"torch {torch.__version__}, one thread")
    for n_values in (1_200_000, 5_000_000):
        arena = torch.randn(n_values) * torch.randn(n_values) * torch.randn(n_values) * 1e-3
        variables = torch.split(arena, lengths(n_values))
        for frac in (0.01, 0.1):

            def select():
                for variable in variables:
                    k = max(1, round(frac * variable.numel()))
                    indices = torch.topk(variable.abs(), k, sorted=False).indices
                    variable[indices]

            taken = seconds(select)
            print(f"topk {frac:.0%} of {n_values}: {taken * 1e3:.2f} ms, {4 * n_values / taken / 1e9:.2f} GB/s")


if __name__ == "__main__":
    main()
