"""Find the code that a module was run from, as far as Python still holds it.

Called by `closure`. Nothing in a module tells what its statements were, and its file may have been
edited since. Two places may: the frame of a script that is still running, and the bytecode that
the import has cached beside the file.

The bytecode is read once for each import, so that what other processes write there later changes
nothing. What they write between the import and the first study of a process isn't told apart from
what the import has made.
"""

import marshal
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from dasktune.study.compiled import ModuleCode

_HEADER = 16
"""Bytes before the code in cached bytecode: version, flags, and what the source was."""

_NOTHING = ModuleCode(code=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bytecode:
    """What was read beside a file.

    A header says, each in four bytes: the version, the flags (1: by hash, 2: which imports check),
    and the time (whole seconds) and size of the source, or else eight bytes of its hash.
    """

    header: bytes
    code: CodeType
    written_ns: int
    """When; by the clock of the file system."""
    is_replaceable: bool
    """Whether the import would have written it anew if it had been old."""

    def of(self, filename: str) -> ModuleCode:
        """Say what it is for the file as it is now."""
        try:
            is_taken, is_sure = self._fits(Path(filename))
        except OSError:
            is_taken, is_sure = False, False
        code = self.code if self.is_replaceable or is_sure else None
        return ModuleCode(code=code, is_taken_again=is_taken, is_of_file=is_sure)

    def _fits(self, source: Path) -> tuple[bool, bool]:
        """Say whether an import would take it for that of the source, and whether it surely is."""
        flags, said = int.from_bytes(self.header[4:8], "little"), self.header[8:]
        if flags & 1:
            is_sure = source_hash(source.read_bytes()) == said
            return is_sure or not flags & 2, is_sure
        now = source.stat()
        parts = (int(now.st_mtime), now.st_size)
        is_taken = said == b"".join((part & 0xFFFFFFFF).to_bytes(4, "little") for part in parts)
        # A second is long, and tools set times back: what was edited since is younger all the same.
        return is_taken, is_taken and max(now.st_mtime_ns, now.st_ctime_ns) < self.written_ns


_READ: dict[int, tuple[ModuleSpec, _Bytecode | None]] = {}
"""By the identity of what an import was told; held here, so that none is used twice."""


def executed_code(namespace: Mapping[str, Any]) -> ModuleCode:
    """Give the code that a module was run from; empty if nothing tells.

    Args:
        namespace: The globals of a module that Python loaded plainly from a file.
    """
    running = _running(namespace)
    if running is not None:
        return ModuleCode(code=running)
    spec = namespace.get("__spec__")
    if not isinstance(spec, ModuleSpec):
        return _NOTHING
    if id(spec) not in _READ:
        _READ.setdefault(id(spec), (spec, _cached(spec)))
    _, bytecode = _READ[id(spec)]
    return bytecode.of(str(namespace.get("__file__"))) if bytecode else _NOTHING


def _running(namespace: Mapping[str, Any]) -> CodeType | None:
    for newest in sys._current_frames().values():  # the study may be made in another thread
        frame: FrameType | None = newest
        while frame is not None:
            code = frame.f_code
            is_own = frame.f_globals is namespace and code.co_name == "<module>"
            if is_own and code.co_filename == namespace.get("__file__"):  # not that of an exec
                return code
            frame = frame.f_back
    return None


def _cached(spec: ModuleSpec) -> _Bytecode | None:
    """Read what the last import has cached."""
    if not isinstance(spec.cached, str):
        return None
    path = Path(spec.cached)
    try:
        data = path.read_bytes()
        if data[: len(MAGIC_NUMBER)] != MAGIC_NUMBER:
            return None
        code, written_ns = marshal.loads(data[_HEADER:]), path.stat().st_mtime_ns
    except (OSError, EOFError, TypeError, ValueError):
        return None
    if not isinstance(code, CodeType):
        return None
    return _Bytecode(
        header=data[:_HEADER],
        code=code,
        written_ns=written_ns,
        is_replaceable=os.access(path.parent, os.W_OK) and not sys.dont_write_bytecode,
    )
