"""Train a torch module as a Trainable: a supervised loop, filled in from a few hooks."""

from dasktune.torch.trainable import TorchTrainable

__all__ = ["TorchTrainable"]
