"""Orders of least peak as a model that a solver can take, and its answer turned back."""
