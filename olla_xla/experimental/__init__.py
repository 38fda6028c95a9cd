"""Experimental: buffers placed by us, not by XLA, in a CPU executable."""
