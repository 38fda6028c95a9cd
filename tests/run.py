"""Runs pytest on the files named, for build systems that run tests as programs."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:]))
