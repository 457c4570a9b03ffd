"""The public names of the Python SDK (vtrix-sandbox, whose module is `src`), and which test calls which of them.

A test says @covers("Client.create", ...); that it really calls them is checked while it runs. scripts/compatibility makes
the table in docs/compatibility.md from this.
"""

import functools
import importlib.metadata
import inspect
import os
import re
import sys

from src import Client, Command, CommandFinished, Sandbox

from .agent import ROOT

CLASSES = (Client, Sandbox, Command, CommandFinished)
DOCUMENT = os.path.join(ROOT, "docs", "compatibility.md")
_TABLE = re.compile(r"(<!-- made by scripts/compatibility: begin -->\n).*?(<!-- end -->\n)", re.DOTALL)


def public_names():
    """Every public method and property, as "Class.name"; inherited ones under each class that has them."""
    return [
        f"{cls.__name__}.{name}"
        for cls in CLASSES
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    ]


def covers(*names):
    """Says which public names a test calls."""

    def mark(test):
        test.covers = names
        return test

    return mark


class Recorder:
    """Notes every call of a public name while it is on."""

    def __init__(self):
        self.called = set()

    def _noting(self, name, function):
        @functools.wraps(function)
        def noted(instance, *args, **kwargs):
            self.called.add(f"{type(instance).__name__}.{name}")
            return function(instance, *args, **kwargs)

        return noted

    def install(self, monkeypatch):
        owners = {owner for cls in CLASSES for owner in cls.__mro__ if owner is not object}
        for owner in owners:
            for name, value in list(vars(owner).items()):
                if name.startswith("_"):
                    continue
                if isinstance(value, property):
                    monkeypatch.setattr(owner, name, property(self._noting(name, value.fget)))
                elif callable(value):
                    monkeypatch.setattr(owner, name, self._noting(name, value))


def coverage(module):
    """{name: [test, ...]} of the tests in a module."""
    found = {name: [] for name in public_names()}
    for test_name, test in inspect.getmembers(module, inspect.isfunction):
        for name in getattr(test, "covers", ()):
            assert name in found, f"{test_name} covers {name}, which the SDK does not have"
            found[name].append(test_name)
    return found


def table(module):
    version = importlib.metadata.version("vtrix-sandbox")
    lines = [f"Public names of `vtrix-sandbox` {version}, each with the tests in tests/e2e that call it:", ""]
    lines += ["| name | tests |", "|---|---|"]
    file = os.path.basename(module.__file__)
    for name, tests in coverage(module).items():
        assert tests, f"no test in {file} calls {name}"
        lines.append(f"| `{name}` | {', '.join(f'`{test}`' for test in sorted(tests))} |")
    return "\n".join(lines) + "\n"


def with_table(document, module):
    """The document with the table as it is now."""
    made, n = _TABLE.subn(lambda match: f"{match[1]}\n{table(module)}\n{match[2]}", document)
    assert n == 1, "the document has no place for the table"
    return made


def main():
    import test_sdk_all

    with open(DOCUMENT, encoding="utf-8") as file:
        before = file.read()
    after = with_table(before, test_sdk_all)
    if "--check" in sys.argv[1:] and before != after:
        sys.exit("docs/compatibility.md is not up to date: run scripts/compatibility")
    if before != after:
        with open(DOCUMENT, "w", encoding="utf-8") as file:
            file.write(after)


if __name__ == "__main__":
    main()
