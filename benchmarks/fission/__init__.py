"""Steps and random functions, cut by `olla_xla.fission`."""
