"""Orders by simple rules, from which the search starts."""
