"""python -m speculative page RUN.json [PAGE.html]: the page of a run that --json has written."""

import os
from collections.abc import Sequence

from speculative.report.document import naming_run, read_run
from speculative.report.page import page
from speculative.support.errors import UserError
from speculative.support.files import check_outputs, say_written, write_text

USAGE = "python -m speculative page RUN.json [PAGE.html]"


def main(words: Sequence[str]) -> None:
    """Write the page of a run, beside its file if no other place is named. Raises UserError."""
    if {"-h", "--help"} & {*words}:
        return print(f"{__doc__}\n\nRUN.json is a file that --json has written; - is standard input or output.")
    if not 1 <= len(words) <= 2:
        raise UserError(f"page takes the file of a run, and the file of its page: {USAGE}")
    for word in words:
        if word.startswith("--"):
            raise UserError(f"page has no option {word:.80}: {USAGE}")
    path = words[0]
    beside = "-" if path == "-" else f"{os.path.splitext(path)[0]}.html"
    output = [*words, beside][1]
    check_outputs([output], [path])
    record = read_run(path)
    with naming_run(path):
        n_texts = len(record.prompts)
        if n_texts > 1:
            raise UserError(f"{path} has {n_texts} texts, and a page shows one: decode one prompt, without --n_samples")
        html = page(record)
    write_text(output, html)
    say_written(output, "the run as a page, for any browser")
