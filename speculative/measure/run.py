"""A run that is over: its figures, its texts, its page, its file. A notebook shows its page."""

import html
from dataclasses import dataclass

from speculative.measure.page import page
from speculative.support.files import check_writable, write_json, write_text


@dataclass(frozen=True, repr=False)
class Run:
    """One prompt, decoded with both."""

    document: dict  # all of it: see document.py

    @property
    def text(self) -> str:
        """The text that the speculative decoder added to the prompt."""
        return self.document["speculative"]["samples"][0]["text"]

    @property
    def autoregressive(self) -> str:
        """The text that the autoregressive decoder added."""
        return self.document["autoregressive"]["samples"][0]["text"]

    @property
    def iterations(self) -> list[dict]:
        """A flat record for each iteration of the speculative decoder: pandas.DataFrame(run.iterations). In seconds."""
        sample = self.document["speculative"]["samples"][0]
        records = []
        n = 0
        for number, iteration in enumerate(sample["iterations"]):
            alpha = iteration["alpha"]
            record = {"iteration": number, "text": "".join(sample["pieces"][n : n + iteration["tokens"]])}
            record |= {key: iteration[key] for key in ("tokens", "drafted", "accepted")}
            record |= {key: iteration[key] for key in ("drafting", "scoring", "seconds")}
            record["alpha"] = sum(alpha) / len(alpha) if alpha else None  # the mean, where drafts were tested
            n += iteration["tokens"]
            records.append(record)
        return records

    @property
    def figures(self) -> dict:
        return self.document["figures"]

    @property
    def speedup(self) -> float:
        """Autoregressive time / speculative time, per token."""
        return self.figures["speedup"]

    @property
    def r(self) -> float:
        """The acceptance rate: tokens / Σ over iterations of (drafted + 1)."""
        return self.figures["r"]

    def html(self) -> str:
        """The page that replays the run."""
        return page(self.document)

    def page(self, path: str) -> None:
        """Writes the page. Raises UserError."""
        check_writable(path)
        write_text(path, self.html())

    def json(self, path: str) -> None:
        """Writes the document. Raises UserError."""
        check_writable(path)
        write_json(path, self.document)

    def __repr__(self) -> str:
        return "\n".join(self.document["summary"])

    def _repr_html_(self) -> str:
        """In a frame of its own, and a sandbox: the page's style and scripts meet nothing of the notebook's."""
        frame = "width: 100%; height: 80vh; min-height: 30rem; border: 0"
        return (
            f'<iframe title="The run, replayed" sandbox="allow-scripts allow-popups" style="{frame}" '
            f'srcdoc="{html.escape(self.html())}"></iframe>'
        )
