"""The passes of `planner.pipeline`: each takes a ModuleState and returns the next one."""
