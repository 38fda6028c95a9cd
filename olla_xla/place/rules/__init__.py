"""Simple rules for offsets: first fit, best fit."""
