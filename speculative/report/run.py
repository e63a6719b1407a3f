"""A finished run: its figures, its texts, its page, its file. A notebook shows its page."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from speculative.checkpoints.folder import inputs_of
from speculative.checkpoints.names import packs_folder
from speculative.report import ending
from speculative.report.document import to_json, write_run
from speculative.report.make_record import make_record
from speculative.report.page import page
from speculative.report.record import RunRecord, ScoreRecord
from speculative.report.turns import timed_turns
from speculative.run.options import Options
from speculative.run.session import Session
from speculative.run.values import checked, whole
from speculative.support.files import check_outputs, write_text
from speculative.support.progress import working

FRAME = "width: 100%; height: 80vh; min-height: 30rem; border: 0"  # style of the page in a notebook


def check_files(outputs: Sequence[str | None], o: Options) -> None:
    """Raise UserError if one of these files cannot be written, or belongs to the files that a run with these options
    reads."""
    models: list[str] = []
    for size in (o.target_model_size, o.draft_model_size):
        models += inputs_of(size, o.models_dir)
    packed = packs_folder(o.models_dir)
    check_outputs(outputs, [o.prompt_file, o.score, o.ngram_text, packed, *models])


class Written:
    """A measurement, which is written as a page and as a file. A notebook shows the page."""

    record: RunRecord | ScoreRecord
    title: str

    def html(self) -> str:
        """Return the page."""
        raise NotImplementedError

    def write(self, path: str) -> None:
        """Write the document."""
        raise NotImplementedError

    def page(self, path: str) -> None:
        """Write the page. Raises UserError."""
        check_files([path], self.record.options)
        write_text(path, self.html())

    def json(self, path: str) -> None:
        """Write the document; to a file .jsonl a line for each text, or of a score for each token. Raises UserError."""
        check_files([path], self.record.options)
        self.write(path)

    def _repr_html_(self) -> str:
        # In a frame with a sandbox: the page's style and scripts do not meet those of the notebook.
        sandbox = "allow-scripts allow-popups"
        source = html.escape(self.html())
        return f'<iframe title="{self.title}" sandbox="{sandbox}" style="{FRAME}" srcdoc="{source}"></iframe>'


@dataclass(frozen=True, repr=False)
class Run(Written):
    """One prompt, decoded with both."""

    record: RunRecord
    title = "The run, replayed"

    @cached_property
    def document(self) -> dict:
        """The run as --json writes it: see docs/output.md."""
        return to_json(self.record)

    @property
    def text(self) -> str:
        """The text that the speculative decoder added to the prompt."""
        return self.record.decoders["speculative"].samples[0].text

    @property
    def autoregressive(self) -> str:
        """The text that the autoregressive decoder added."""
        return self.record.decoders["autoregressive"].samples[0].text

    @property
    def iterations(self) -> list[dict]:
        """The iterations of the speculative decoder, in seconds: pandas.DataFrame(run.iterations)."""
        return self.document["speculative"]["samples"][0]["iterations"]

    @property
    def figures(self) -> dict:
        """{name: figure}: see docs/output.md."""
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
        """Return the page that replays the run."""
        return page(self.record)

    def write(self, path: str) -> None:
        write_run(path, self.record)

    def __repr__(self) -> str:
        return "\n".join(ending.texts_of(self.record, ending.CAME, ending.WHY))


def compare(
    session: Session,
    prompt: str,
    n_tokens_to_generate: int = 40,
    repeats: int | None = None,
    watch: Callable | None = None,
) -> Run:
    """Decode with both decoders -> the run. repeats: how often; by default a short decode is repeated until it has
    taken half a second, and the median counts. watch(name, step): called for each step of the first run, in place of a
    bar. Raises UserError."""
    N = checked("n_tokens_to_generate", whole(1), n_tokens_to_generate)
    repeats = None if repeats is None else checked("repeats", whole(1), repeats)
    with working("decoding", 2 * N, "token", quiet=bool(watch)) as bar:
        show = watch or (lambda name, step: bar.update(len(step.tokens)))
        records = [*timed_turns(session, [prompt], N, repeats=repeats, watch=show)]
    return Run(make_record(session, [prompt], records, prompt=prompt, n_tokens_to_generate=N))
