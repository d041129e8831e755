import gc

import pytest

from dasktune.study.collector import rare_full_collections


def test_full_collections_are_rare_inside_and_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with rare_full_collections():
        young, middle, old = gc.get_threshold()
        assert (young, middle) == before[:2]
        assert old > before[2]
    assert gc.get_threshold() == before


def test_the_collector_is_as_before_also_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), rare_full_collections():
        raise RuntimeError("stopped")
    assert gc.get_threshold() == before
