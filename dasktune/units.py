"""Names for the numbers and identifiers that cross module boundaries.

Aliases of plain types: they cost nothing and say what a number counts. Times are seconds; what
else carries a unit has it in its name (`_bytes`, `_usd`, `_fraction`).
"""

from typing import NewType, TypeAlias

Step: TypeAlias = int
"""Steps of training that are done: a state at step 0 is fresh, the first step is number 0."""

Seconds: TypeAlias = float
"""A duration, or a moment counted from the beginning of a study."""

WorkerId = NewType("WorkerId", str)
"""Name of a worker, unique for the life of a study."""

Digest = NewType("Digest", str)
"""A SHA-256 digest as 64 lower-case hexadecimal digits."""
