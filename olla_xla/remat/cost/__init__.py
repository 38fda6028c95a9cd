"""What running an operator costs: bytes moved, operations, predicted seconds."""
