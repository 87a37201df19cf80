"""The test's side of `reading_child`: asks, waits no longer than it should, and starts it again."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE = 30.0  # seconds for a file of some kilobytes


class GuardedReader:
    """Reads files in another process.

    Args:
        log: A file for what that process says before it dies.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._known: dict[str, Path] = {}
        self._valid: dict[str, bytes] = {}

    def learn(self, name: str, path: Path) -> None:
        """Reads the valid file, which tells what is right."""
        self._known[name], self._valid[name] = path, path.read_bytes()
        assert self._ask(name, path, valid=True) == "ready"

    def read(self, name: str) -> tuple[str, str]:
        """What came of the file, as it now lies there, and why."""
        if self._process is None:  # it died of the one before
            damaged = self._known[name].read_bytes()
            self._known[name].write_bytes(self._valid[name])
            self.learn(name, self._known[name])
            self._known[name].write_bytes(damaged)
        answer = self._ask(name, self._known[name], valid=False)
        return ("FAILED", answer) if isinstance(answer, str) else tuple(answer)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, name: str, path: Path, valid: bool) -> str | list[str]:
        if self._process is None:
            self._process = self._started()
        question = {"format": name, "path": str(path), "valid": valid}
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE + 60 * valid)
        answer = self._process.stdout.readline() if ready else ""
        if answer:
            return json.loads(answer)
        code = self._process.poll() if ready else "still reading"
        self.close()
        said = self._log.read_bytes()[-400:].decode("utf-8", "replace")
        return f"the process ended ({code}): {said}"

    def _started(self) -> subprocess.Popen[str]:
        source = HERE.parents[1] / "src"
        path = os.pathsep.join([str(source), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        few = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, str(HERE / "reading_child.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | few,
            )
