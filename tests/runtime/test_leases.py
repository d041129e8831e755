"""Leases as a pure thing: told what happened, they keep their laws whatever happened."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dasktune.runtime.leases import Leases, Message


def anything(resources: Mapping[str, float]) -> bool:  # noqa: ARG001
    return True


def gpus_only(resources: Mapping[str, float]) -> bool:
    return "GPU" in resources


class Machine(RuleBasedStateMachine):
    """Drivers as they see themselves, from the messages that they get; all may be slow."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases()
        self.workers: dict[str, Mapping[str, float]] = {}
        self.going: dict[str, Mapping[str, float]] = {}
        """Workers that are about to go, and may yet stay."""
        self.held: dict[str, set[str]] = {}
        self.wants: dict[str, bool] = {}
        self.gpu_drivers: set[str] = set()
        self.refused: set[tuple[str, str]] = set()
        """Which driver has refused which worker, as long as that worker is there."""
        self.recalls: deque[Message] = deque()
        self.returning: deque[tuple[str, str]] = deque()
        self.n = 0

    def hear(self, messages: Iterable[Message]) -> None:
        for topic, message in messages:
            assert topic in self.held, "a driver that has left is told something"
            match message["kind"]:
                case "granted":
                    worker = message["worker"]
                    assert worker in self.workers
                    assert not any(worker in held for held in self.held.values()), "leased twice"
                    assert self.wants[topic]
                    assert self.fits(topic, worker)
                    self.held[topic].add(worker)
                case "gone":
                    self.held[topic].remove(message["worker"])
                case "leaving":
                    assert message["worker"] in self.held[topic]
                    self.returning.append((topic, message["worker"]))
                case "recall":
                    self.recalls.append((topic, message))
                case kind:
                    raise AssertionError(kind)

    def fits(self, topic: str, worker: str) -> bool:
        if (topic, worker) in self.refused:
            return False
        return topic not in self.gpu_drivers or "GPU" in self.workers.get(worker, {})

    @rule(gpu=st.booleans())
    def join(self, gpu: bool) -> None:
        self.n += 1
        topic = f"driver-{self.n}"
        self.held[topic], self.wants[topic] = set(), True
        if gpu and self.n % 4 == 0:
            self.gpu_drivers.add(topic)
        fits = gpus_only if topic in self.gpu_drivers else anything
        self.hear(self.leases.join(topic, f"client-{self.n}", fits))

    @rule(gpu=st.booleans())
    def worker_joins(self, gpu: bool) -> None:
        self.n += 1
        worker = f"worker-{self.n}"
        self.workers[worker] = {"GPU": 1} if gpu else {}
        self.hear(self.leases.worker_joined(worker, self.workers[worker]))

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def worker_leaves(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.workers)))
        messages = self.leases.worker_left(worker)
        del self.workers[worker]
        self.forget_refusals_of(worker)
        self.hear(messages)

    def forget_refusals_of(self, worker: str) -> None:
        self.refused = {each for each in self.refused if each[1] != worker}

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def worker_is_refused(self, data: st.DataObject) -> None:
        held = sorted((topic, worker) for topic, of in self.held.items() for worker in of)
        topic, worker = data.draw(st.sampled_from(held))
        self.held[topic].remove(worker)
        self.refused.add((topic, worker))
        self.hear(self.leases.refused(topic, worker))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def driver_joins_again(self, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.held)))
        self.held[topic], self.wants[topic] = set(), True
        self.refused = {each for each in self.refused if each[0] != topic}
        self.recalls = deque(each for each in self.recalls if each[0] != topic)
        self.returning = deque(each for each in self.returning if each[0] != topic)
        fits = gpus_only if topic in self.gpu_drivers else anything
        self.hear(self.leases.join(topic, f"client-{topic.split('-')[1]}", fits))

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def worker_is_about_to_go(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.workers)))
        self.going[worker] = self.workers.pop(worker)
        self.hear(self.leases.worker_leaving(worker))

    @precondition(lambda self: self.going)
    @rule(data=st.data(), stays=st.booleans())
    def worker_goes_or_stays(self, data: st.DataObject, stays: bool) -> None:
        worker = data.draw(st.sampled_from(sorted(self.going)))
        resources = self.going.pop(worker)
        if stays:
            self.workers[worker] = resources
            self.hear(self.leases.worker_joined(worker, resources))
        else:
            self.forget_refusals_of(worker)
            self.hear(self.leases.worker_left(worker))

    @precondition(lambda self: self.returning)
    @rule()
    def worker_is_returned(self) -> None:
        topic, worker = self.returning.popleft()
        if worker in self.held.get(topic, ()):
            self.held[topic].discard(worker)
            self.hear(self.leases.returned(topic, worker))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def driver_leaves(self, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.held)))
        assert self.leases.of_client(f"client-{topic.split('-')[1]}") == [topic]
        del self.held[topic]
        del self.wants[topic]
        self.recalls = deque(each for each in self.recalls if each[0] != topic)
        self.hear(self.leases.leave(topic))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), wants=st.booleans(), has_idle=st.booleans())
    def demand(self, data: st.DataObject, wants: bool, has_idle: bool) -> None:
        topic = data.draw(st.sampled_from(sorted(self.held)))
        self.wants[topic] = wants
        self.hear(
            self.leases.demand(topic, wants=wants, has_idle=has_idle and bool(self.held[topic]))
        )

    @precondition(lambda self: self.recalls)
    @rule()
    def answer_recall(self) -> None:
        topic, message = self.recalls.popleft()
        held = sorted(self.held[topic].intersection(message["among"]))
        if not held or (message["only_idle"] and self.wants[topic]):
            self.hear(self.leases.returned(topic, None))
        else:
            self.held[topic].discard(held[0])
            self.hear(self.leases.returned(topic, held[0]))

    @invariant()
    def a_worker_is_leased_once_and_only_while_it_is_there(self) -> None:
        leased = [worker for held in self.held.values() for worker in held]
        assert len(leased) == len(set(leased))
        assert set(leased) <= {*self.workers, *self.going}

    @invariant()
    def no_worker_is_free_that_somebody_wants(self) -> None:
        leased = {worker for held in self.held.values() for worker in held}
        for worker in set(self.workers) - leased:
            for topic, wants in self.wants.items():
                fits = self.fits(topic, worker)
                assert not (wants and fits), f"{worker} is free and {topic} wants it"

    @invariant()
    def both_sides_agree(self) -> None:
        of_plugin = {topic: d.workers for topic, d in self.leases._drivers.items()}
        assert of_plugin == self.held

    @rule()
    def when_recalls_are_answered_wanting_drivers_differ_by_one_at_most(self) -> None:
        for _ in range(200):
            if not self.recalls:
                break
            self.answer_recall()
        assert not self.recalls, "recalls go on for ever"
        sizes = [
            len(held)
            for topic, held in self.held.items()
            if self.wants[topic] and topic not in self.gpu_drivers
        ]
        if sizes and not self.gpu_drivers and not self.refused:
            assert max(sizes) - min(sizes) <= 1
        for poor in [topic for topic, wants in self.wants.items() if wants]:
            for rich, held in self.held.items():
                is_of_use = any(self.fits(poor, worker) for worker in held)
                if len(held) >= len(self.held[poor]) + 2:
                    assert not is_of_use, f"{rich} has two more than {poor}, which could use them"


TestLeases = Machine.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_news_of_strangers_change_nothing() -> None:
    leases = Leases()
    assert leases.demand("nobody", wants=True, has_idle=True) == []
    assert leases.returned("nobody", "w") == []
    assert leases.refused("nobody", "w") == []
    assert leases.leave("nobody") == []
    assert leases.worker_left("nothing") == []


def test_an_idle_worker_goes_where_it_is_wanted_however_few_there_are() -> None:
    leases = Leases()
    leases.join("one", "1", anything)
    leases.worker_joined("a", {})
    leases.demand("one", wants=False, has_idle=True)
    messages: list[Any] = leases.join("two", "2", anything)
    assert messages == [("one", {"kind": "recall", "only_idle": True, "among": ["a"]})]
    assert leases.returned("one", "a") == [("two", {"kind": "granted", "worker": "a"})]


def test_only_workers_that_the_other_can_use_are_asked_for() -> None:
    leases = Leases()
    leases.join("any", "1", anything)
    for worker in ("a", "b", "c"):
        leases.worker_joined(worker, {})
    assert leases.join("gpu", "2", gpus_only) == []
    messages: list[Any] = leases.worker_joined("d", {"GPU": 1})
    assert messages == [("gpu", {"kind": "granted", "worker": "d"})]
    leases.leave("gpu")
    messages = leases.join("gpu again", "3", gpus_only)
    assert messages == [("any", {"kind": "recall", "only_idle": False, "among": ["d"]})]


def test_a_worker_that_is_refused_goes_to_another_and_never_comes_back_while_it_is_there() -> None:
    leases = Leases()
    leases.join("one", "1", anything)
    leases.worker_joined("a", {})
    leases.worker_joined("b", {})
    assert leases.refused("one", "a") == []
    assert leases.demand("one", wants=True, has_idle=False) == []
    granted: list[Any] = [("two", {"kind": "granted", "worker": "a"})]
    assert leases.join("two", "2", anything) == granted
    # Each has one, and neither could use more of what the other has than it does now.
    assert leases.leave("two") == []
    leases.worker_left("a")
    again: list[Any] = [("one", {"kind": "granted", "worker": "a"})]
    assert leases.worker_joined("a", {}) == again


def test_a_refusal_that_is_late_harms_nobody() -> None:
    leases = Leases()
    leases.join("one", "1", anything)
    leases.worker_joined("a", {})
    leases.worker_left("a")
    assert leases.refused("one", "a") == []
    assert leases.worker_joined("a", {}) == [("one", {"kind": "granted", "worker": "a"})]
