"""What import contracts can't see: the process after an import, and the package's shape."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dasktune as dt

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dasktune"
MODULES = sorted(PACKAGE.rglob("*.py"))

FORBIDDEN_AT_IMPORT = (
    "bokeh",
    "dask",
    "distributed",
    "fsspec",
    "hypothesis",
    "kr8s",
    "numpy",
    "optuna",
    "torch",
    "yaml",
)
MAX_LINES = 400
MAX_DEPTH = 2
VAGUE_NAMES = {"base", "common", "helpers", "manager", "utils"}


def relative(module: Path) -> str:
    return module.relative_to(ROOT).as_posix()


def loaded_after(statement: str) -> set[str]:
    """Top-level names in `sys.modules` of a new process that ran `statement`."""
    program = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return set(answer.stdout.split())


def contract(name: str) -> dict[str, Any]:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, Any]] = configuration["tool"]["importlinter"]["contracts"]
    return next(contract for contract in contracts if contract["id"] == name)


def layers() -> list[set[str]]:
    """Top-level names of each layer in the contract of flow, from the top."""
    return [
        {name.strip(" ()") for name in layer.split("|")} for layer in contract("flow")["layers"]
    ]


def test_import_loads_no_library_of_the_world() -> None:
    loaded = loaded_after("import dasktune")

    assert "dasktune" in loaded
    assert not loaded & set(FORBIDDEN_AT_IMPORT)


def test_the_face_shows_all_that_it_has() -> None:
    assert set(dt.__all__) | {"__version__"} <= set(dir(dt))
    assert all(hasattr(dt, name) for name in dt.__all__)
    assert dt.__version__ == version("dasktune")


def test_pure_modules_load_the_standard_library_only() -> None:
    pure: list[str] = contract("pure-core")["source_modules"]

    added = loaded_after(f"import dasktune, {', '.join(pure)}") - loaded_after("")

    assert added - sys.stdlib_module_names == {"dasktune"}


def test_every_layer_from_the_simulator_down_is_bound_by_the_pure_contract() -> None:
    present = {module.relative_to(PACKAGE).parts[0].removesuffix(".py") for module in MODULES}
    first_pure = next(i for i, layer in enumerate(layers()) if "simulator" in layer)
    pure = set().union(*layers()[first_pure:]) & present

    assert set(contract("pure-core")["source_modules"]) == {f"dasktune.{name}" for name in pure}


def test_every_module_has_a_docstring() -> None:
    silent = [
        relative(module)
        for module in MODULES
        if ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) is None
    ]

    assert silent == []


def test_every_folder_is_a_package() -> None:
    """The import contracts see no folder without `__init__.py`."""
    missing = {
        relative(module.parent)
        for module in MODULES
        if not (module.parent / "__init__.py").exists()
    }

    assert missing == set()


def test_modules_stay_short() -> None:
    lengths = {
        relative(module): len(module.read_text(encoding="utf-8").splitlines()) for module in MODULES
    }

    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_folders_stay_flat() -> None:
    deep = [
        relative(module)
        for module in MODULES
        if len(module.relative_to(ROOT).parent.parts) > MAX_DEPTH
    ]

    assert deep == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = [
        relative(module)
        for module in MODULES
        if VAGUE_NAMES & {part.removesuffix(".py") for part in module.relative_to(ROOT).parts}
    ]

    assert vague == []
