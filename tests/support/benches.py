"""A workbench whose decodes take as long as a test wants."""

import threading

from speculative.cli import workbench
from speculative.report.turns import timed_turns


class Endless:
    """In place of compare: decodes again and again, until it is stopped or allowed to fail."""

    def __init__(self, monkeypatch):
        self.fail = threading.Semaphore(0)
        self.running, self.most = [], 0
        monkeypatch.setattr(workbench, "compare", lambda *given, watch: self.compare(*given, watch))

    def compare(self, session, prompt, n, watch):
        self.running.append(prompt)
        self.most = max(self.most, len(self.running))
        try:
            while not self.fail.acquire(timeout=0.1):
                [*timed_turns(session, [prompt], n, ["speculative"], watch)]
            raise RuntimeError("the end")
        finally:
            self.running.remove(prompt)
