"""Steps and random functions that `olla_xla.fission` cuts into pieces."""
