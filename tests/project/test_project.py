"""pyproject.toml agrees with the project."""

import re

import pytest
from tiny import ROOT

tomllib = pytest.importorskip("tomllib")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]


def names(lines):
    return {re.match(r"[\w-]+", line)[0] for line in lines}


def test_with_all_extras_it_is_requirements_txt():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    optional = PROJECT["optional-dependencies"]
    extras = [name for extra, needed in optional.items() for name in needed if extra != "law"]
    tensorflow = {"tensorflow", "tensorflow-cpu"}  # of the tests
    listed = names(line for line in lines if not line.startswith("#"))
    assert names(PROJECT["dependencies"] + extras) == listed - tensorflow
    assert not names(PROJECT["dependencies"]) & {"jax", "matplotlib", "scipy", "torch"}  # large packages are extras
    law = (ROOT / "requirements-law.txt").read_text(encoding="utf-8").splitlines()
    assert {*optional["law"]} <= names(line for line in law if not line.startswith("#"))
