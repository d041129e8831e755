"""Import this where torch will be needed soon: it loads what torch itself leaves for later.

torch imports its compiler at the first optimizer, whether anything is compiled or not, and that
takes as long as torch itself. Workers that are started for training code with torch import this
while they start, so it does not wait for all that has to happen before the first step.
"""

import importlib
from contextlib import suppress

with suppress(ImportError):  # other versions of torch may do without
    importlib.import_module("torch._dynamo")
