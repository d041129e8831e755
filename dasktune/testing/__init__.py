"""Prove that samplers and tuners keep what they owe: contracts to inherit from in tests."""

from dasktune.testing.sampler import SamplerContract
from dasktune.testing.tuner import TunerContract

__all__ = ["SamplerContract", "TunerContract"]
