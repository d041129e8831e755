"""Imported by workers that we start: a heartbeat that finds nobody is no error of theirs.

One may be under way while a cluster closes, and Dask then writes thirty lines on the standard error
of a run that went well. A line that is lost in the middle of a run the driver reports, in words.
"""

import logging

VAIN = "Failed to communicate with scheduler during heartbeat."


def is_news(record: logging.LogRecord) -> bool:
    """Say whether a record is worth showing."""
    return record.msg != VAIN


logging.getLogger("distributed.worker").addFilter(is_news)
