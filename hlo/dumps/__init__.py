"""Reads modules from files: HLO protos, HLO text and StableHLO. No plan of a step needs this."""
