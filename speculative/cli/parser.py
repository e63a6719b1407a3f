"""The argument parser of every command but main.py: what is wrong is one line here too."""

import argparse
from typing import NoReturn

from speculative.errors import UserError


class Parser(argparse.ArgumentParser):
    """argparse's, which raises UserError where argparse would print its usage and end the program."""

    def __init__(self, doc: str, **options):
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def print_help(self, file=None) -> None:
        print(self.format_help(), end="", file=file)  # argparse would pass over a disk that is full

    def error(self, message: str) -> NoReturn:
        raise UserError(message)
