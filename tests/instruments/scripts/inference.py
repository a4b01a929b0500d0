"""A script that never steps an optimizer."""

import torch
from torch import nn

model = nn.Linear(4, 4)
with torch.no_grad():
    for _ in range(3):
        model(torch.ones(2, 4))
print("done")
