"""The referee of GPU executables: on real steps' executables, and on mutants of them."""
