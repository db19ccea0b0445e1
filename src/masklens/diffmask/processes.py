"""Which of several processes this one is, as torchrun and accelerate launch say it."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor


def is_main() -> bool:
    """Whether this is the process that writes and prints."""
    return int(os.environ.get("RANK", "0")) == 0


def own_device(asked: str | None) -> str | None:
    """The device of this process: of several processes on a machine with GPUs, each has its own."""
    local = os.environ.get("LOCAL_RANK")
    if local is None or asked not in (None, "cuda"):
        return asked
    return f"cuda:{local}" if torch.cuda.is_available() else asked


class World:
    """The processes that fit one lens together; the only one there is, unless a launcher started more."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if self.size > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum over processes."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def from_main(self, tensor: Tensor) -> Tensor:
        """The main process's tensor."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.broadcast(tensor, 0)
        return tensor
