"""Room for the connections to servers: each request under way has one, which counts as an open file."""

import resource

from storage.errors import ConfigError

_OTHER_FILES = 512
"""Files besides connections, of this process and of a server."""


def require_open_files(connections: int) -> None:
    """Raise ConfigError where the system does not let this user have so many connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not _allows(most, connections):
        raise ConfigError(
            f"engine.max_in_flight: {connections} requests at a time need as many open files and "
            f"{_OTHER_FILES} others, and this system allows {most} (ulimit -Hn); let it allow more, or set "
            "a smaller engine.max_in_flight"
        )


def allow_open_files(connections: int) -> None:
    """Let this process, and the servers that it starts, have so many connections. Raises as above."""
    require_open_files(connections)
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not _allows(now, connections):
        resource.setrlimit(resource.RLIMIT_NOFILE, (connections + _OTHER_FILES, most))


def _allows(limit: int, connections: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= connections + _OTHER_FILES
