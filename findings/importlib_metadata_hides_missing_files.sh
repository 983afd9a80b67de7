#!/bin/sh
# `importlib.metadata.distribution(NAME).files` lists what a package's RECORD names. In Python 3.11 that is every line, also
# of a file that is missing, so a program can tell that an installation is damaged.
#
# Expected: what the standard library's module gives does not depend on whether another package was imported before.
# Seen: after `import importlib_metadata` (the backport, which MLflow and others import) `importlib.metadata` gives that
# package's distributions, whose `files` leave out what is missing. The same program sees the damage or not, by what was
# imported before it looks. From Python 3.12 on the standard library's leave it out, too.
# Versions: Python 3.11, importlib_metadata 8.7.0, six 1.17.0 (as the package that is looked at).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q importlib_metadata==8.7.0 six==1.17.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import pathlib
import sys

print("Python", sys.version.split()[0], "importlib_metadata", importlib.metadata.version("importlib_metadata"))


def listed() -> bool:
    return "six.py" in map(str, importlib.metadata.distribution("six").files)


pathlib.Path(importlib.metadata.distribution("six").locate_file("six.py")).unlink()
before = listed()
import importlib_metadata  # noqa: E402, F401

after = listed()
print(f"six.py is missing: importlib.metadata lists it before the import {before}, after it {after}")
assert (before, after) == (True, False), "both give the same by now"
PYTHON
