"""The report: one HTML file, drawn by Bokeh, that needs nothing else."""
