"""Where to compute."""

from __future__ import annotations

import torch


def pick() -> tuple[torch.device, str]:
    """The card if one here computes, else the processor; and one line that says which, to print.

    A simulated card has memory and limits and does not compute, so the answer there is the processor.
    """
    try:
        if torch.cuda.is_available() and float((torch.arange(3, device="cuda") + 1).sum()) == 6:
            return torch.device("cuda"), f"computed on {torch.cuda.get_device_name()}"
        why = "there is no card here that PyTorch can use"
    except RuntimeError as error:
        why = f"the card here does not compute ({str(error).splitlines()[0]})"
    return torch.device("cpu"), f"computed on the processor: {why}"
