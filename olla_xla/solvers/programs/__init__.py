"""Integer programs for orders of least peak, recomputation and scan residuals: a satellite."""
