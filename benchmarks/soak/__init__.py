"""Whether a process that plans again and again grows: resident memory, seconds a call."""
