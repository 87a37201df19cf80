"""Interrupts as Ctrl-C sends them: real signals, at random moments of a call."""

import gc
import signal
from contextlib import contextmanager


class Timer:
    """Interrupts the main thread, but only while it is armed."""

    def __init__(self):
        self.armed = False

    def ring(self, *_):
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def interrupts(self, action, delay):
        """Whether the action was interrupted after this many seconds."""
        gc.disable()  # what is raised within a callback of the collector is lost
        signal.setitimer(signal.ITIMER_REAL, delay)
        try:
            self.armed = True
            action()
            self.armed = False
        except KeyboardInterrupt:
            return True
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            gc.enable()
        return False


@contextmanager
def timed_interrupts():
    timer = Timer()
    before = signal.signal(signal.SIGALRM, timer.ring)
    try:
        yield timer
    finally:
        signal.signal(signal.SIGALRM, before)
