"""Functions of a source, with planted mistakes."""

from speculative.law.samplers.mistakes import patched


def planted(source, name, *replaced):
    """The function of this name in the source, with each text replaced by the one after it."""
    edits = [*zip(replaced[::2], replaced[1::2], strict=True)]
    assert all(old in source for old, _ in edits), edits
    return patched(source, name, edits)
