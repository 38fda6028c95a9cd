"""What user commands need."""
