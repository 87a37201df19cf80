"""Says what `make test` will take on this machine, before it begins."""

import os

# Of style, types and quick tests together, on a core with nothing else to do.
CORE_MINUTES = 6.0


def expected(cores: int, load: float) -> str:
    """Returns the sentence for a machine with this many cores, and as many busy processes.

    Examples:
        >>> expected(2, 0.1)
        'Checks and tests: about 3 minutes on 2 cores.'
    """
    quiet = CORE_MINUTES / cores
    counted = f"{cores} core{'s' * (cores != 1)}"
    if load < cores / 2:
        return f"Checks and tests: about {minutes(quiet)} on {counted}."
    busy = quiet * (load + cores) / cores
    return (
        f"Checks and tests: about {minutes(busy)} on {counted}, which are busy "
        f"(load {load:.1f}; {max(1, round(quiet))} if they were not)."
    )


def minutes(number: float) -> str:
    """A number of minutes in words, at least one."""
    whole = max(1, round(number))
    return f"{whole} minute{'s' * (whole != 1)}"


if __name__ == "__main__":
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(expected(usable or 1, os.getloadavg()[0]))  # noqa: T201
