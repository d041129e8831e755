"""A trainable in a file of its own: fingerprinting a class reads the file that it stands in."""

from collections.abc import Mapping


class Untrained:
    """A trainable for simulated studies: nobody ever trains it."""

    def setup(self, hp: Mapping[str, object], seed: int) -> None: ...

    def step(self, hp: Mapping[str, object], t: int) -> None: ...

    def evaluate(self) -> Mapping[str, float]:
        return {}

    def state_dict(self) -> object:
        return None

    def load_state_dict(self, state: object) -> None: ...
