"""What slots ask of workers, what workers offer, and why nothing fits. Pure."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

Resources: TypeAlias = Mapping[str, float]
"""Amounts by name, as Dask's workers offer them."""


def slot_resources(asked: Resources | None, offered: Resources) -> Resources:
    """Return what a slot takes of a worker's resources; by default a GPU if it has one."""
    # Of just this name. DASK_DISTRIBUTED__WORKER__RESOURCES__GPU gives Dask a `gpu`, for which a
    # task that asks for `GPU` waits for ever: by default such a worker is used without asking.
    if asked is not None:
        return asked
    return {"GPU": 1.0} if "GPU" in offered else {}


def fits(asked: Resources | None, offered: Resources) -> bool:
    """Say whether a worker offers what a slot asks for; None asks for a GPU where there are any."""
    takes = slot_resources(asked, offered)
    return all(offered.get(name, 0) >= amount for name, amount in takes.items())


def fitting(asked: Resources | None, cluster: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the workers of a cluster that offer what a slot asks for."""
    return {w for w, facts in cluster.items() if fits(asked, facts.get("resources") or {})}


def why_no_worker(
    asked: Resources | None,
    cluster: Mapping[str, Mapping[str, Any]],
    awaited: Collection[str],
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Say why a driver has no worker.

    Args:
        asked: What each slot takes.
        cluster: All workers of the cluster, as Dask's scheduler describes them.
        awaited: Those that the driver was given and that have not answered yet.
        left_out: Those that it cannot use whatever they offer, and why.
    """
    if not cluster:
        return "the cluster has no workers"
    usable = fitting(asked, cluster)
    if not usable:
        takes = asked or {}
        most = {
            name: max((facts.get("resources") or {}).get(name, 0) for facts in cluster.values())
            for name in takes
        }
        return (
            f"each slot takes {_listed(takes)}, and of the cluster's {_workers(len(cluster))} none "
            f"offers more than {_listed(most)}{_other_case(takes, cluster)}"
        )
    silent = sorted(usable & set(awaited))
    if silent:
        return f"{', '.join(silent)} has not answered yet"
    refused = sorted(usable & left_out.keys())
    usable.difference_update(refused)
    said = []
    if usable:
        is_any_ready = any(cluster[w].get("status", "running") == "running" for w in usable)
        where = "with other drivers" if is_any_ready else "paused or closing"
        number = _workers(len(usable))
        said.append(f"the cluster's {number} that could be used {_be(usable)} {where}")
    if refused:
        why = f"{refused[0]}: {left_out[refused[0]]}"
        said.append(f"{_workers(len(refused))} {_be(refused)} left out ({why})")
    return ", and ".join(said)


def _other_case(takes: Resources, cluster: Mapping[str, Mapping[str, Any]]) -> str:
    """Name what is offered under the same name in other letters: variables make them small."""
    offered = {name for facts in cluster.values() for name in facts.get("resources") or {}}
    asked = {name.lower() for name in takes}
    alike = sorted(name for name in offered - takes.keys() if name.lower() in asked)
    return f"; some offer {', '.join(alike)}, which is another name" if alike else ""


def _be(workers: Collection[str]) -> str:
    return "is" if len(workers) == 1 else "are"


def _listed(resources: Resources) -> str:
    return ", ".join(f"{name}: {amount:g}" for name, amount in resources.items())


def _workers(n: int) -> str:
    return "1 worker" if n == 1 else f"{n} workers"
