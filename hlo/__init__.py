"""XLA's formats: HLO modules, values and aliases, buffer assignments. Imports nothing of olla_xla.

This is the one package that touches XLA's protos.
"""
