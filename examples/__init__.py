"""Example models and trainers that show and measure `olla_xla` on common train steps."""
