"""Reads and raises the limit of open files, of which each connection is one."""

import logging
import resource

logger = logging.getLogger(__name__)

WANTED_FILES = 65_536
"""Open files that a service asks for: more connections than it could serve."""


def open_files_limit() -> int:
    """Returns the number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED_FILES if soft == resource.RLIM_INFINITY else soft


def raise_open_files_limit() -> None:
    """Raises the soft limit to WANTED_FILES, or as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        logger.warning("the limit of open files stays at %d: %s", soft, error)
