"""Changes of a serialized HLO module: schedules, aliases, clones, copies, calls."""
