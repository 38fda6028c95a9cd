"""Solvers behind models that know none of them: linear models, intervals, minimum cuts."""
