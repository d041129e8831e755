"""What cannot be a place to run in, or is no study, is refused in one sentence before any work."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.runner import extend, run
from tests.worlds import small_study

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "text for a number of workers": ({"workers": "2"}, "workers must be an integer"),
    "fewer workers than none": ({"workers": -1}, "workers"),
    "no store": ({"store": None}, "store is None; it must be a folder, a URL or a Store"),
    "empty store": ({"store": ""}, "store is ''"),
    "an address for a client": (
        {"client": "tcp://127.0.0.1:8786"},
        "client is 'tcp://127.0.0.1:8786'; it must be a distributed.Client",
    ),
    "text for an amount": ({"resources": {"GPU": "1"}}, "resources['GPU'] is '1'"),
    "endless amount": ({"resources": {"GPU": float("inf")}}, "resources['GPU'] is inf"),
    "negative amount": ({"resources": {"GPU": -1}}, "resources['GPU'] is -1"),
    "a name for resources": ({"resources": "GPU"}, "resources is 'GPU'; it must be like"),
    "no function": ({"on_event": 3}, "on_event is 3; it must be a function"),
}


@pytest.mark.parametrize("door", [run, extend])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_place_is_refused(
    door: Any,  # noqa: ANN401
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    where, words = WRONG[case]

    with pytest.raises(InvalidStudyError) as refused:
        door(small_study(), **where)

    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_clients_that_cannot_serve_are_refused(tmp_path: Path) -> None:
    with LocalCluster(
        n_workers=0, processes=False, dashboard_address="127.0.0.1:0", protocol="tcp"
    ) as cluster:
        client = Client(cluster, set_as_default=False)
        client.close()
        with pytest.raises(InvalidStudyError, match="client is closed; give one that is connected"):
            run(small_study(), client=client, store=tmp_path)
        with pytest.raises(InvalidStudyError, match=r"must be a distributed\.Client"):
            run(small_study(), client=cluster, store=tmp_path)

        async def run_in_a_coroutine() -> None:
            async with Client(cluster.scheduler_address, asynchronous=True) as later:
                run(small_study(), client=later, store=tmp_path)

        with pytest.raises(InvalidStudyError, match="client is asynchronous"):
            asyncio.run(run_in_a_coroutine())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [[], None, 3, [small_study(), 3], (), "study"])
def test_what_is_no_study_is_refused(given: Any, tmp_path: Path) -> None:  # noqa: ANN401
    with pytest.raises(InvalidStudyError, match=r"run\(\) got .*; it must be a study"):
        run(given, store=tmp_path)


def test_only_one_study_is_extended_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(InvalidStudyError, match=r"extend\(\) got \[.*one at a time"):
        extend([small_study()], store=tmp_path)  # type: ignore[arg-type]


def test_misspelt_keywords_are_refused_by_both_doors() -> None:
    for door in (dt.run, dt.extend):
        with pytest.raises(TypeError, match="storre"):
            door(small_study(), storre="here")  # type: ignore[call-arg]
