"""Errors that the user sees as one line. This imports nothing of ours, so that every module may import it."""


class UserError(Exception):
    """Something the user can put right. Its message is one line: what was wrong, and what would be right."""


def first_line(error: BaseException) -> str:
    """The first line of a library's message, cut to a length that can be read."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:150]


def shortened(message: str) -> str:
    """The message without its middle if it is too long, because of a path of thousands of characters for example."""
    return message if len(message) <= 800 else f"{message[:400]} ... {message[-400:]}"
