"""Inputs and results of planning: tensor graphs, options, plans and their files."""
