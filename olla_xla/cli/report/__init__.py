"""Formatting of results, for people; nothing here measures or compiles."""
