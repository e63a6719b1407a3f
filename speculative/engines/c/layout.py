"""engine.c's structs and tables, by its own declarations: so what Python fills is what C reads."""

import ctypes
import functools
from ctypes import c_char_p, c_ssize_t

from speculative.engines.c.library import library


def declared(name: str) -> str:
    """The text that this function of engine.c returns."""
    function = getattr(library(), name)
    function.restype = c_char_p
    return function().decode()


@functools.cache
def numbers(table: str) -> dict[str, int]:
    """{name: its number} of engine.c's table "format", "activation" or "result"."""
    names = declared(f"{table}_names").split()
    return {name: number for number, name in enumerate(names)}


@functools.cache
def struct(name: str) -> type[ctypes.Structure]:
    """The struct of this name in engine.c. Its fields are numbers and addresses, which are words of the same size, or
    structs of such words."""
    return type(name, (ctypes.Structure,), {"_fields_": fields_of(declared(f"layout_of_{name}"))})


def fields_of(declarations: str) -> list[tuple[str, type]]:
    """The fields of a struct, in order, with their types: "const float *b; number n_in, n_out;"."""
    fields = []
    for declaration in declarations.split(";")[:-1]:
        type_name, _, names = declaration.strip().removeprefix("const ").partition(" ")
        for field in names.split(", "):
            is_word = type_name == "number" or field.startswith("*")
            fields.append((field.lstrip("*"), c_ssize_t if is_word else struct(type_name)))
    return fields
