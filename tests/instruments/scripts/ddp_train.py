"""A classifier trained with DistributedDataParallel, as a user would write it."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def build_model(width: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(64, width), nn.GELU()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--checkpoint", default="")
    args = parser.parse_args()

    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(build_model(args.width), bucket_cap_mb=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()

    samples = 32 * args.steps * args.accumulate * dist.get_world_size()
    data = TensorDataset(torch.randn(samples, 64), torch.randint(0, 10, (samples,)))
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=args.workers)

    for index, (inputs, labels) in enumerate(loader):
        synchronize = (index + 1) % args.accumulate == 0
        if not synchronize:
            with model.no_sync():
                (loss_function(model(inputs), labels) / args.accumulate).backward()
            continue
        loss = loss_function(model(inputs), labels) / args.accumulate
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if args.checkpoint and index == args.steps // 2 and dist.get_rank() == 0:
            torch.save(model.state_dict(), args.checkpoint)

    total = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
    if os.environ.get("RANK", "0") == "0":
        print(f"final loss {loss.item():.6f}, parameters {total:.12f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
