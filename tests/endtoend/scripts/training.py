"""A user's own training script: a small DistributedDataParallel model whose forward can be made to take longer."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    """Two layers; forward sleeps, in place of a kernel that got slower."""

    def __init__(self, forward_ms: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4))
        self.forward_ms = forward_ms

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.forward_ms / 1000)
        return self.layers(inputs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--base-ms", type=float, default=40.0)
    parser.add_argument("--extra-ms", type=float, default=0.0)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model(args.base_ms + args.extra_ms))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(args.steps):
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
