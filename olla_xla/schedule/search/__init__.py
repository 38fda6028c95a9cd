"""The search for an order: cuts, local search, branch and bound, flat orders."""
