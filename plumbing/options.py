"""Options: one frozen value with a field for every flag, made of the flags as they are declared."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from typing import Any, get_type_hints

from plumbing import extras
from plumbing.arguments import Flag, nearest
from plumbing.errors import UserError


@dataclass(frozen=True)
class Options:
    """The value of every flag, under its name. from_flags() makes a class with these fields."""

    def replaced(self, **values: Any) -> "Options":
        return replace(self, **values)

    def taken(self, names: Iterable[str]) -> dict[str, Any]:
        """{name: value} of these flags."""
        return {name: getattr(self, name) for name in names}


def from_flags(flags: Iterable[Flag], values: dict[str, Any]) -> Options:
    """A typed field for each flag, with its default or with what `values` has for it."""
    fields = []
    for flag in flags:
        kind = get_type_hints(flag.parse).get("return", Any)
        if flag.default is None:
            kind = kind | None
        fields.append((flag.name, kind, flag.default))
    return with_fields(tuple(fields))(**values)


@cache
def with_fields(fields: tuple) -> type[Options]:
    """(name, type, default) of each field -> one class for the same fields, so that its values can be compared."""
    defined = [(name, kind, field(default=default)) for name, kind, default in fields]
    return make_dataclass("Options", defined, bases=(Options,), frozen=True)


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
    try:
        return flag.parse(flag.joined_by.join(map(str, parts)))
    except ValueError as must_be:
        raise UserError(f"--{flag.name} must be {must_be}, not {str(value)!r:.80}") from None


def check_libraries(flags: dict[str, Flag], used: Collection[str]) -> None:
    """Raises UserError where a flag that is used needs a library that is not installed."""
    for name in flags:
        if name in used:
            extras.check(f"--{name}", flags[name].needs)


def check_exclusive(flags: dict[str, Flag], used: Collection[str]) -> None:
    """Raises UserError where two of the flags that are used cannot be combined."""
    for name in flags:
        for other in flags[name].excludes:
            if name in used and other in used:
                first, second = sorted((name, other), key=list(flags).index)
                raise UserError(f"--{first} and --{second} cannot be combined: give one of them")


def check_useful(flags: dict[str, Flag], used: Collection[str], o: Options) -> None:
    """Raises UserError where a flag that is used does nothing with the other options."""
    for name in flags:
        why = flags[name].in_vain(o) if name in used else ""
        if why:
            raise UserError(f"--{name} is of no use here: {why}")
