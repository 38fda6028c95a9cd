"""The paper's integer programs for places: (6), (7), (8), (15); with (9), order and places."""
