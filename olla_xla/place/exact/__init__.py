"""The exact search for a packing: depth first, under restarts."""
