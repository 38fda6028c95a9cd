"""What touches JAX: the decorator, the hook, stored plans, XLA's own figures."""
