import inspect
import subprocess
import sys

import pytest

from hlo.late import late

pytestmark = pytest.mark.quick

LOADED = """
import inspect, sys
from hlo.late import late
guards = late("hlo.rewrite.guards")
assert not hasattr(guards, "__wrapped__") and inspect.unwrap(guards) is guards
print("hlo.rewrite.guards" in sys.modules, repr(guards))
guards.add_guards
print("hlo.rewrite.guards" in sys.modules)
"""


def test_a_module_is_loaded_when_it_is_used():
    run = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert run.stdout == "False <late module hlo.rewrite.guards>\nTrue\n"


def test_names_are_the_modules_own(monkeypatch):
    walk = late("hlo.walk")
    assert inspect.isfunction(walk.after_needs)
    monkeypatch.setattr("hlo.walk.after_needs", "another")
    assert walk.after_needs == "another"
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = walk.no_such_name
