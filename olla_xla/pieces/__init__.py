"""Fission: an axis cut into pieces, and the function run one piece at a time."""
