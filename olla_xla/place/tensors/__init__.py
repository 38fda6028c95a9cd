"""Offsets for the tensors of a graph: under one order, under any, in a process of its own."""
