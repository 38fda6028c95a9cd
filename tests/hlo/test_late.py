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


LISTED = """
import sys
from hlo.rewrite import guards
print("hlo.rewrite.guards" in sys.modules)
guards.add_guards
from hlo.rewrite import guards
print(guards is sys.modules["hlo.rewrite.guards"])
"""


def test_a_package_gives_stand_ins_for_the_modules_that_it_lists():
    run = subprocess.run([sys.executable, "-c", LISTED], capture_output=True, text=True, check=True)
    assert run.stdout == "False\nTrue\n"
    with pytest.raises(ImportError, match="cannot import name 'no_such_module'"):
        from hlo.rewrite import no_such_module  # noqa: F401  # pyright: ignore


def test_names_are_the_modules_own(monkeypatch):
    walk = late("hlo.walk")
    assert inspect.isfunction(walk.after_needs)
    monkeypatch.setattr("hlo.walk.after_needs", "another")
    assert walk.after_needs == "another"
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = walk.no_such_name
