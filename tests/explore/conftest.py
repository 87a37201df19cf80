import threading
from contextlib import contextmanager

import pytest

from retarget.explore.server import ExploreServer


@contextmanager
def serving(opening):
    with ExploreServer(opening) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def serve():
    return serving
