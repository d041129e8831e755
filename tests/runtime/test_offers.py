"""What slots ask of workers, and what is said when nothing fits."""

import pytest

from dasktune.runtime.offers import fits, slot_resources, why_no_worker

CPU = {"resources": {}, "status": "running"}
GPU = {"resources": {"GPU": 2.0}, "status": "running"}


def test_a_gpu_is_taken_by_default_where_there_are_any_and_what_is_asked_for_otherwise() -> None:
    assert slot_resources(None, {"GPU": 2.0}) == {"GPU": 1.0}
    assert slot_resources(None, {"memory": 2.0}) == {}
    assert slot_resources({"GPU": 0.5}, {}) == {"GPU": 0.5}
    assert slot_resources({}, {"GPU": 2.0}) == {}


def test_a_worker_fits_if_it_offers_all_that_is_asked_for() -> None:
    assert fits(None, {})
    assert fits({"GPU": 1, "A": 2}, {"GPU": 1.0, "A": 3.0})
    assert not fits({"GPU": 1, "A": 2}, {"GPU": 1.0, "A": 1.0})
    assert not fits({"GPU": 1}, {"gpu": 1.0})


@pytest.mark.parametrize(
    ("asked", "cluster", "awaited", "said"),
    [
        (None, {}, [], "the cluster has no workers"),
        (
            {"GPU": 1}, {"a": CPU, "b": CPU}, [],
            "each slot takes GPU: 1, and of the cluster's 2 workers none offers more than GPU: 0",
        ),
        (
            {"GPU": 4, "A": 0.5}, {"a": GPU, "b": CPU}, [],
            "each slot takes GPU: 4, A: 0.5, and of the cluster's 2 workers none offers more than "
            "GPU: 2, A: 0",
        ),
        (
            {"GPU": 1}, {"a": CPU, "b": {"resources": {"gpu": 1.0}}}, [],
            "each slot takes GPU: 1, and of the cluster's 2 workers none offers more than GPU: 0; "
            "some offer gpu, which is another name",
        ),
        (None, {"a": CPU}, ["a"], "a has not answered yet"),
        (
            {"GPU": 1}, {"a": CPU, "b": GPU}, [],
            "the cluster's 1 worker that could be used is with other drivers",
        ),
        (
            None, {"a": CPU, "b": GPU}, [],
            "the cluster's 2 workers that could be used are with other drivers",
        ),
        (
            None, {"a": {"resources": {}, "status": "paused"}}, [],
            "the cluster's 1 worker that could be used is paused or closing",
        ),
    ],
)  # fmt: skip
def test_what_is_in_the_way_is_said_in_a_sentence(
    asked: dict[str, float] | None,
    cluster: dict[str, dict[str, object]],
    awaited: list[str],
    said: str,
) -> None:
    assert why_no_worker(asked, cluster, awaited) == said


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"a": CPU}, "1 worker is left out (a: its disk is another)"),
        ({"a": CPU, "b": GPU}, "2 workers are left out (a: its disk is another)"),
        (
            {"a": CPU, "c": CPU},
            "the cluster's 1 worker that could be used is with other drivers, and 1 worker is left "
            "out (a: its disk is another)",
        ),
        ({"c": CPU}, "the cluster's 1 worker that could be used is with other drivers"),
    ],
)
def test_what_is_left_out_is_said_with_the_reason(
    cluster: dict[str, dict[str, object]], said: str
) -> None:
    left_out = {"a": "its disk is another", "b": "it hung"}
    assert why_no_worker(None, cluster, [], left_out) == said
