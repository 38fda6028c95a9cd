"""Planned steps of several processes on this machine's CPU, with faults put into some of them."""
