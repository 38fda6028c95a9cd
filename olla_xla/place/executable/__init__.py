"""Places for the buffers of a compiled CPU executable."""
