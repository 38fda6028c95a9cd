"""Modules of any stage in files: HLO protos, HLO text, StableHLO. No plan of a step needs them."""
