"""How soon `retarget explore` answers a change: from the request to the last byte of the answer.

    python benchmarks/explore.py [--sizes 40 200 500]

The limit is 200 ms for 200 points. Every setting is another one (rate, order, mini-batch and moment
change), over one connection, as the page asks while a slider moves. Beside it, the time of the
picture alone: the rest is JSON and the connection.
"""

import argparse
import http.client
import json
import platform
import threading
import time

import numpy as np

from retarget.explore.picture import draw
from retarget.explore.server import ExploreServer
from retarget.explore.state import State, toy_opening

LIMIT_MS, LIMIT_POINTS = 200.0, 200
ORDERS = ("as given", "reversed", "by x", "random")


def settings(n: int, count: int) -> list[State]:
    """Settings of n points, each different."""
    rng = np.random.default_rng(n)
    return [
        State(
            x=rng.uniform(0, 1, n).tolist(),
            y=rng.normal(size=n).tolist(),
            low=0.0,
            high=1.0,
            width=0.3,
            lr=float(rng.uniform(0.01, 0.5) / batch),
            batch_size=int(batch),
            block_size=int(8 * batch),
            momentum=float(rng.uniform(0, 0.5)),
            order=ORDERS[i % len(ORDERS)],
            seen=int(rng.integers(n // 2, n + 1)),
        )
        for i, batch in enumerate(rng.integers(1, 5, count))
    ]


def milliseconds(start: float) -> float:
    """The time since then."""
    return 1e3 * (time.perf_counter() - start)


def answer_times(server: ExploreServer, states: list[State]) -> list[float]:
    """Milliseconds from the request to the whole answer, one by one."""
    connection = http.client.HTTPConnection(*server.server_address)
    times = []
    for state in states:
        start = time.perf_counter()
        body = state.model_dump_json()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/{server.token}/compute", body, headers)
        answer = json.loads(connection.getresponse().read())
        times.append(milliseconds(start))
        assert "effective" in answer["targets"]
    connection.close()
    return times


def picture_times(states: list[State]) -> list[float]:
    """Milliseconds of the pictures alone."""
    times = []
    for state in states:
        start = time.perf_counter()
        draw(state)
        times.append(milliseconds(start))
    return times


def main() -> None:
    """Prints the times by number of points."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[40, 200, 500])
    parser.add_argument("--repeats", type=int, default=100)
    options = parser.parse_args()
    print(f"{platform.platform()}, Python {platform.python_version()}")
    columns = ("points", "median ms", "95% ms", "worst ms", "picture ms", "of limit")
    print("".join(f"{column:>12}" for column in columns))
    with ExploreServer(toy_opening()) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answer_times(server, settings(40, 5))  # warm up
        for n in options.sizes:
            states = settings(n, options.repeats)
            times, alone = answer_times(server, states), np.median(picture_times(states))
            median, high, worst = np.quantile(times, [0.5, 0.95, 1.0])
            share = f"{high / LIMIT_MS:.2f}" if n == LIMIT_POINTS else ""
            cells = (f"{value:.1f}" for value in (median, high, worst, alone))
            print("".join(f"{cell:>12}" for cell in (n, *cells, share)))
        server.shutdown()


if __name__ == "__main__":
    main()
