"""Choose where to train: on the GPU that this process was given, if there is one."""

import os

import torch


def chosen_device() -> torch.device:
    """Return the device to train on; a GPU other than the first becomes the current one.

    Workers that dasktune starts are given one GPU each, by `CUDA_VISIBLE_DEVICES`. A script that
    uses CUDA at its top level, which workers import, comes before that: then CUDA sees all GPUs for
    good, and `DASKTUNE_GPU` says which of them is meant.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    given = os.environ.get("DASKTUNE_GPU")
    if given is None:
        return torch.device("cuda")
    torch.cuda.init()
    # One generator for each GPU that CUDA sees; device_count() may go by the environment.
    n_seen = len(torch.cuda.default_generators)
    if n_seen <= len(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")):
        return torch.device("cuda")
    device = torch.device("cuda", int(given) % n_seen)
    torch.cuda.set_device(device)
    return device
