"""What one waits for before anything happens, beside Python's own start.

    python benchmarks/startup.py

Prints CPU seconds of a new process, the least of several, and how many starts of Python that is.
"""

import argparse
import resource
import subprocess
import sys

COMMAND = "import sys; from retarget.cli import main; sys.argv = ['retarget', {}]; main()"
CASES = {
    "python": "pass",
    "import retarget": "import retarget",
    "retarget --version": COMMAND.format("'--version'"),
    "retarget --help": COMMAND.format("'--help'"),
    "retarget diagnose --help": COMMAND.format("'diagnose', '--help'"),
    "import torch": "import torch",
}


def seconds(code: str, repeats: int) -> float:
    """CPU time of a process that runs the code, the least of several."""
    found = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    measured = {name: seconds(code, repeats) for name, code in CASES.items()}
    for name, found in measured.items():
        print(f"{name:26} {found:6.3f} s  {found / measured['python']:6.1f} x")


if __name__ == "__main__":
    main()
