"""What an order costs: lifetimes, bounds on them, XLA's assignment of buffers."""
