"""Options: the value of every flag, made of the flags as they are declared and of what was given of them."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from speculative.support.arguments import Flag, nearest
from speculative.support.errors import UserError


class Options(SimpleNamespace):
    """The value of every flag, under its name, as o.K. It stays as it is: replaced() gives another."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} stays as it is: replaced() gives other options")

    def replaced(self, **values: Any) -> "Options":
        return Options(**vars(self) | values)

    def taken(self, names: Iterable[str]) -> dict[str, Any]:
        """{name: value} of these flags."""
        return {name: getattr(self, name) for name in names}


def given_values(flags: dict[str, Flag], given: dict[str, Any]) -> dict[str, Any]:
    """{flag: value, or what was typed of it} -> {flag: value}.

    A value that is the default itself, or None, counts as not given. Raises UserError for the first that is not right.
    """
    values = {}
    for name, value in given.items():
        if name not in flags:
            near = nearest(name, flags)
            hint = f"did you mean --{near}?" if near else "see --help"
            raise UserError(f"unknown flag --{name:.80}: {hint}")
        if value is not None and value is not flags[name].default:
            values[name] = parse_one(flags[name], value)
    return values


def parse_one(flag: Flag, value: Any) -> Any:
    """The value of a flag. Raises UserError."""
    parts = value if isinstance(value, tuple | list) else [value]
    if len(parts) > 1 and not flag.joined_by:
        raise UserError(f"--{flag.name} must be one value, not {str(value)!r:.80}")
    try:
        return flag.parse(flag.joined_by.join(map(str, parts)))
    except ValueError as must_be:
        raise UserError(f"--{flag.name} must be {must_be}, not {str(value)!r:.80}") from None


def check_exclusive(used: list[Flag]) -> None:
    """Raises UserError where two of the flags that are used cannot be combined."""
    names = [flag.name for flag in used]
    for flag in used:
        for other in flag.excludes:
            if other in names:
                first, second = sorted((flag.name, other), key=names.index)
                raise UserError(f"--{first} and --{second} cannot be combined: give one of them")


def check_useful(flag: Flag, o: Options) -> None:
    """Raises UserError where a flag would do nothing with these options."""
    why = flag.in_vain(o)
    if why:
        raise UserError(f"--{flag.name} is of no use here: {why}")
